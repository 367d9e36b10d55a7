/* A thread (tid) with calls of TLS handshakes, and its use of sockets. Written by the tls family; control.tcp_threads
 * counts such threads, so that the check is free while there is none. */
#define TCP_THREADS 1		/* for families after this one: tcp_threads exists */
#define TCP_RECEIVED 16
#define TCP_DOUBT 4096
#define TCP_RECEIVED_WITHIN 65536	/* handshakes end before so many bytes */
struct tcp_received {	/* data read from a socket and not yet in a call's BIO */
	u64 sk;			/* 0: free */
	u32 from;		/* position in its stream before the reads since the last call, and after them */
	u32 to;
	u32 call;		/* the thread's number of calls then */
	u32 pad;
};

struct tcp_thread {
	u64 used;		/* the socket last used within a call, 0 for none */
	u32 inside;
	u32 open;		/* handshakes that continue with a later call */
	u32 calls;
	u32 next;		/* next element of received to use */
	u32 doubt;		/* so many calls may belong to reads without room */
	u32 uid;		/* the user whose share it uses */
	struct tcp_received received[TCP_RECEIVED];
};
#define TCP_THREADS_EACH_NS 60000000000ull
#define TCP_THREADS_MOST 1024	/* of a user */
BPF_TABLE("hash", u32, struct tcp_thread, tcp_threads, 4096);
BPF_TABLE("array", u32, struct tcp_thread, tcp_thread_zero, 1);	/* never written */

static __always_inline void tcp_thread_end(u32 tid)
{
	struct control *c = get_control();
	struct tcp_thread *t = tcp_threads.lookup(&tid);
	if (!t || !c)
		return;
	u32 uid = t->uid;
	if (tcp_threads.delete(&tid))
		return;
	__sync_fetch_and_add(&c->tcp_threads, -1);
	give_share_back(uid, SHARE_TLS_READERS, TCP_THREADS_EACH_NS);
}

/* The element of a thread, created if missing; 0 without room: its handshakes then have no socket. */
static __always_inline struct tcp_thread *tcp_thread_of(u32 tid)
{
	u32 zero = 0, uid;
	struct tcp_thread *t = tcp_threads.lookup(&tid), *none = tcp_thread_zero.lookup(&zero);
	struct control *c = get_control();
	if (t || !none || !c)
		return t;
	uid = uid_of((void *)bpf_get_current_task());
	if (no_place(uid, SHARE_TLS_READERS, TCP_THREADS_EACH_NS, TCP_THREADS_MOST))
		return 0;
	if (tcp_threads.update(&tid, none)) {
		give_share_back(uid, SHARE_TLS_READERS, TCP_THREADS_EACH_NS);
		return 0;
	}
	__sync_fetch_and_add(&c->tcp_threads, 1);
	t = tcp_threads.lookup(&tid);
	if (t)
		t->uid = uid;
	return t;
}

/* Such a thread, the current one, sends or receives. */
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
	void *skb = PTR(ADDR(sk, sock, sk_receive_queue), sk_buff_head, next);	/* the data just read is still there */
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
