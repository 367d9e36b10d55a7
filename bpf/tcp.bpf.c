/* TCP: smoothed RTT per socket, retransmits, resets, and the users of sockets (tcp_socket.h); connects and ends are in
 * tcp_state.bpf.c. Raw tracepoints only; kernel 5.8 (ring buffer). Driven by agent/probes/tcp.py. */

enum { TCP_SENT_DATA, TCP_SENT_SYNACK, TCP_SENT_SYN };
enum { TCP_RESET_SENT, TCP_RESET_RECEIVED };

struct tcp_retransmit_event {
	u64 t_ns;
	struct proc proc;
	struct sock_ref sock;
	u32 count;
	u8 kind;
	u8 tcp_state;
	u8 pad2[2];
};

struct tcp_reset_event {
	u64 t_ns;
	struct proc proc;
	struct sock_ref sock;
	u8 direction;
	u8 complete;
	u8 pad2[6];
};

/* They have room for all shares. */
#define TCP_RETRANSMITS_EACH_NS 300000
#define TCP_RETRANSMITS_MOST 512
#define TCP_RESETS_EACH_NS 300000
#define TCP_RESETS_MOST 512
BPF_RINGBUF_OUTPUT(tcp_retransmits, 128);
BPF_RINGBUF_OUTPUT(tcp_resets, 128);

/* Each incoming segment, in windows: gives samples of sockets that only send, or block in one long send. */
int on_tcp_probe(struct bpf_raw_tracepoint_args *ctx)
{
	void *sk = (void *)ctx->args[0];
	u64 key = (u64)sk;
	u32 now = tcp_gate(key);
	struct tcp_hot *h = tcp_hot_of(key);
	if (!h || h->seen == now)
		return 0;
	struct tcp_socket *s = tcp_sockets.lookup(&key);
	if (!s)
		s = tcp_adopt(sk, bpf_ktime_get_boot_ns());
	if (!s || tcp_sample(sk, s))	/* one without a place is not tried at each segment */
		h->seen = now;
	return 0;
}

/* Another thread than before sends or receives. */
static __always_inline struct tcp_socket *tcp_new_user(void *sk, struct tcp_socket *s, u64 user)
{
	if (!s)
		s = tcp_adopt(sk, bpf_ktime_get_boot_ns());
	if (!s)
		return 0;
	if (s->user >> 32 != user >> 32) {
		tcp_used(s, user);
	} else {
		s->user = user;
		s->proc.tid = user;
	}
	return s;
}

/* The current task uses this socket (kernel TLS and the like in softirqs too). */
static __always_inline void tcp_moves(u64 sk, bool receives)
{
	u64 user = bpf_get_current_pid_tgid();
	u32 tid = user, tag = tcp_mixed(sk, user), now = tcp_gate(sk);
	struct tcp_hot *h = tcp_hot_of(sk);
	struct control *c = get_control();
	if (!h || !c)
		return;
	bool known = h->user == tag && (!receives || h->received == now);
	bool sample = receives && known && h->client && tcp_may_sample();
	if (known && !sample && !c->tcp_threads)
		return;
	struct tcp_thread *t = c->tcp_threads ? tcp_threads.lookup(&tid) : 0;
	if (known && !sample && !t)
		return;
	struct tcp_socket *s = tcp_sockets.lookup(&sk);
	if (!s || s->user != user)
		s = !receives || tcp_owned((void *)sk) ? tcp_new_user((void *)sk, s, user) : s;
	if (!s) {	/* it has no place: not tried at each call */
		h->user = tag;
		h->received = now;
		h->client = 0;
		return;
	}
	if (receives && h->received != now && tcp_sample((void *)sk, s)) {
		if (s->sock.role != TCP_ROLE_SERVER || s->reads >= TCP_FIRST_READS)
			h->received = now;
		else
			s->reads++;
		tcp_serve((void *)sk, s, true, false);
		sample = true;
	}
	if (sample)
		tcp_answer((void *)sk, s);
	if (s->user != user)
		return;
	h->user = tag;
	h->client = s->sock.role == TCP_ROLE_CLIENT;
	if (t)
		tcp_note(t, (void *)sk, s, receives);
}

int on_tcp_receive(struct bpf_raw_tracepoint_args *ctx)
{
	tcp_moves(ctx->args[0], 1);
	return 0;
}

/* sock_send_length, since 6.3 (6e6eda44b939), in windows; before, the return of tcp_sendmsg, always. Both have the
 * socket as first argument. */
int on_tcp_send(struct bpf_raw_tracepoint_args *ctx)
{
#if TP_sock_send_length
	u64 sk = ctx->args[0];
#else
	u64 sk = 0;	/* read, since the verifier takes an argument for a pointer, and forbids arithmetic with it */
	bpf_probe_read_kernel(&sk, sizeof(sk), &ctx->args[0]);
#endif
	tcp_moves(sk, 0);
	return 0;
}

static __always_inline void tcp_sent_again(void *common, void *sk, u8 kind, u32 count)
{
	u64 key = (u64)sk;
	struct tcp_socket *s = tcp_sockets.lookup(&key);
	struct tcp_retransmit_event *e;
	if (tcp_over(s, SHARE_RETRANSMITS, TCP_RETRANSMITS_EACH_NS, TCP_RETRANSMITS_MOST))
		return;
	e = tcp_retransmits.ringbuf_reserve(sizeof(*e));
	if (!e) {
		lose(LOST_tcp_retransmits);
		return;
	}
	__builtin_memset(e, 0, sizeof(*e));
	tcp_describe(&e->proc, &e->sock, common, s);
	if (kind == TCP_SENT_SYNACK) {
		e->sock.role = TCP_ROLE_SERVER;
		tcp_listener_of(&e->proc, &e->sock);
	}
	e->t_ns = bpf_ktime_get_boot_ns();
	e->count = count;
	e->kind = kind;
	e->tcp_state = tcp_state_of(common);
	tcp_retransmits.ringbuf_submit(e, QUIET);
}

int on_tcp_retransmit(struct bpf_raw_tracepoint_args *ctx)
{
	void *sk = (void *)ctx->args[0], *skb = (void *)ctx->args[1];
	u16 segments = 0;
#if TP_tcp_retransmit_skb >= 3
	if ((int)ctx->args[2])	/* err: it was not sent */
		return 0;
#endif
	GET(segments, ADDR(skb, sk_buff, cb), tcp_skb_cb, tcp_gso_segs);
	tcp_sent_again(sk, sk, tcp_state_of(sk) == TCP_SYN_SENT ? TCP_SENT_SYN : TCP_SENT_DATA, segments ? segments : 1);
	return 0;
}

int on_tcp_retransmit_synack(struct bpf_raw_tracepoint_args *ctx)
{
	tcp_sent_again((void *)ctx->args[1], 0, TCP_SENT_SYNACK, 1);
	return 0;
}

static __always_inline void tcp_reset(void *sk, void *skb, u8 direction)
{
	u64 key = (u64)sk;
	struct tcp_socket *s = sk ? tcp_sockets.lookup(&key) : 0;
	struct tcp_reset_event *e;
	if (tcp_over(s, SHARE_RESETS, TCP_RESETS_EACH_NS, TCP_RESETS_MOST))
		return;
	e = tcp_resets.ringbuf_reserve(sizeof(*e));
	if (!e) {
		lose(LOST_tcp_resets);
		return;
	}
	__builtin_memset(e, 0, sizeof(*e));
	if (sk) {
		tcp_describe(&e->proc, &e->sock, sk, s);
	} else {
		no_proc(&e->proc);
		e->sock.sock_id = UNKNOWN64;
		e->sock.netns = UNKNOWN32;
		e->sock.role = UNKNOWN8;
	}
	if (skb && (!sk || tcp_state_of(sk) == TCP_LISTEN)) {
		tcp_tuple_of_segment(&e->sock, skb);
		if (sk) {
			e->sock.role = TCP_ROLE_SERVER;
			tcp_listener_of(&e->proc, &e->sock);
		}
	}
	e->t_ns = bpf_ktime_get_boot_ns();
	e->direction = direction;
	e->complete = TP_tcp_send_reset >= 3;	/* before 6.10, a reset without a socket is not traced */
	tcp_resets.ringbuf_submit(e, QUIET);
}

int on_tcp_send_reset(struct bpf_raw_tracepoint_args *ctx)
{
	tcp_reset((void *)ctx->args[0], (void *)ctx->args[1], TCP_RESET_SENT);	/* 6.10: a reason follows, sk may be NULL */
	return 0;
}

int on_tcp_receive_reset(struct bpf_raw_tracepoint_args *ctx)
{
	tcp_reset((void *)ctx->args[0], 0, TCP_RESET_RECEIVED);
	return 0;
}
