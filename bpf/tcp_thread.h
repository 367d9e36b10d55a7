/* A thread (tid) that makes calls of TLS handshakes, and what it did with sockets. Kept by the tls family; control.tcp_threads counts them, so
 * that nobody else looks while there is none. */
#define TCP_THREADS 1		/* for families after this one: tcp_threads exists */
#define TCP_RECEIVED 16
#define TCP_DOUBT 4096
#define TCP_RECEIVED_WITHIN 65536	/* handshakes are over before so many bytes */
struct tcp_received {		/* what was read of a socket and is in no call's BIO yet, as far as is known */
	u64 sk;			/* 0: free */
	u32 from;		/* bytes of its stream before the reads since the last call, and after them */
	u32 to;
	u32 call;		/* how many calls the thread had made */
	u32 pad;
};

struct tcp_thread {
	u64 used;		/* the socket that it last sent or received on within a call, 0 for none */
	u32 inside;
	u32 open;		/* handshakes that go on with a later call */
	u32 calls;
	u32 next;		/* element of received that is used next */
	u32 doubt;		/* so many calls may be those of reads that there was no room to keep */
	u32 pad;
	struct tcp_received received[TCP_RECEIVED];
};
BPF_TABLE("hash", u32, struct tcp_thread, tcp_threads, 2048);
BPF_TABLE("array", u32, struct tcp_thread, tcp_thread_zero, 1);	/* never written */

static __always_inline void tcp_thread_end(u32 tid)
{
	struct control *c = get_control();
	if (!tcp_threads.delete(&tid) && c)
		__sync_fetch_and_add(&c->tcp_threads, -1);
}

/* The element of a thread, made where it is missing; 0 where there is no room: its handshakes then have no socket. */
static __always_inline struct tcp_thread *tcp_thread_of(u32 tid)
{
	u32 zero = 0;
	struct tcp_thread *t = tcp_threads.lookup(&tid), *none = tcp_thread_zero.lookup(&zero);
	struct control *c = get_control();
	if (t || !none || !c || tcp_threads.update(&tid, none))
		return t;
	__sync_fetch_and_add(&c->tcp_threads, 1);
	return tcp_threads.lookup(&tid);
}

/* Such a thread, current, sends or receives. */
static __always_inline void tcp_note(struct tcp_thread *t, void *sk, struct tcp_socket *s, bool receives)
{
	if (t->inside) {
		t->used = (u64)sk;
		return;
	}
	if (!receives || s->ssl == UNKNOWN64)
		return;
	u64 bytes = 0;
	u32 next = 0, copied = 0, start = 0;
	void *skb = PTR(ADDR(sk, sock, sk_receive_queue), sk_buff_head, next);	/* what was just read is still there */
	GET(bytes, sk, tcp_sock, bytes_received);
	GET(next, sk, tcp_sock, rcv_nxt);
	GET(copied, sk, tcp_sock, copied_seq);
	GET(start, ADDR(skb, sk_buff, cb), tcp_skb_cb, seq);
	u32 to = (u32)bytes - (next - copied);
	if (bytes > TCP_RECEIVED_WITHIN)
		return;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < TCP_RECEIVED; i++) {
		struct tcp_received *known = &t->received[i];
		if (known->sk == (u64)sk) {
			if (known->call != t->calls)
				known->from = known->to;
			known->call = t->calls;
			known->to = to;
			return;
		}
	}
	struct tcp_received *r = &t->received[t->next++ & (TCP_RECEIVED - 1)];
	if (r->sk && r->call == t->calls && t->doubt < TCP_DOUBT)
		t->doubt += 2;
	r->sk = (u64)sk;
	r->from = to - (copied - start);
	r->to = to;
	r->call = t->calls;
}
