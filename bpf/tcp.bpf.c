/* TCP: smoothed RTT per socket, connects, retransmits, resets, connection ends, and who uses a socket (tcp_socket.h).
 * Raw tracepoints only; kernel 5.8 (ring buffer). Driven by agent/probes/tcp.py. */

#define TCP_EADDRNOTAVAIL 99

enum { TCP_CONNECT_OK, TCP_CONNECT_FAILED, TCP_CONNECT_ABORTED };
enum { TCP_SENT_DATA, TCP_SENT_SYNACK, TCP_SENT_SYN };
enum { TCP_RESET_SENT, TCP_RESET_RECEIVED };

struct tcp_connect_event {
	u64 t_ns;
	struct proc proc;
	struct sock_ref sock;
	u64 duration_ns;
	u32 errno;
	u8 result;
	u8 pad2[3];
};

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

struct tcp_close_event {
	u64 t_ns;
	struct proc proc;
	struct sock_ref sock;
	u64 duration_ns;
	u64 bytes_in;
	u64 bytes_out;
	u64 waited_ns;
	u32 retransmits;
	u32 srtt_us;
};

/* 4 KB pages: the connects and closes of 1,800 connections, both ends here, between two drains. */
BPF_RINGBUF_OUTPUT(tcp_connects, 64);
BPF_RINGBUF_OUTPUT(tcp_retransmits, 32);
BPF_RINGBUF_OUTPUT(tcp_resets, 32);
BPF_RINGBUF_OUTPUT(tcp_closes, 128);

static __always_inline void tcp_connect_done(void *sk, struct tcp_socket *s, u64 now, u8 result, u32 err)
{
	struct tcp_connect_event *e = tcp_connects.ringbuf_reserve(sizeof(*e));
	if (!e) {
		lose(LOST_tcp_connects);
		return;
	}
	__builtin_memset(e, 0, sizeof(*e));
	tcp_describe(&e->proc, &e->sock, sk, s);
	e->t_ns = now;
	e->sock.role = TCP_ROLE_CLIENT;
	e->duration_ns = s ? now - s->born_ns : UNKNOWN64;
	e->errno = err;
	e->result = result;
	tcp_connects.ringbuf_submit(e, QUIET);
}

static __always_inline void tcp_connect_failed(void *sk, struct tcp_socket *s, u64 now)
{
	u32 err = 0, sent = 0;
	u16 port = 0;
	GET(err, sk, sock, sk_err);
	GET(sent, sk, tcp_sock, segs_out);
	GET(port, sk, inet_sock, inet_sport);
	if (err)
		tcp_connect_done(sk, s, now, TCP_CONNECT_FAILED, err);
	else if (sent)
		tcp_connect_done(sk, s, now, TCP_CONNECT_ABORTED, UNKNOWN32);
	else	/* no SYN left the host; without a port there was none to be had */
		tcp_connect_done(sk, s, now, TCP_CONNECT_FAILED, port ? UNKNOWN32 : TCP_EADDRNOTAVAIL);
}

static __always_inline void tcp_closed(void *sk, struct tcp_socket *s, u64 now, u8 old)
{
	u64 flags = 0;
	struct tcp_sent a = {};
	struct tcp_close_event *e = tcp_closes.ringbuf_reserve(sizeof(*e));
	if (!e) {
		lose(LOST_tcp_closes);
		return;
	}
	__builtin_memset(e, 0, sizeof(*e));
	tcp_describe(&e->proc, &e->sock, sk, s);
	if (!s && tcp_owned(sk))
		fill_proc(&e->proc, (void *)bpf_get_current_task());
	tcp_account(&a, sk, old);
	if (e->sock.role == UNKNOWN8)
		e->sock.role = a.role;
	e->t_ns = now;
	e->duration_ns = s && s->established_ns != UNKNOWN64 ? now - s->established_ns : UNKNOWN64;
	GET(flags, sk, sock_common, skc_flags);
	GET(e->bytes_in, sk, tcp_sock, bytes_received);
	if (flags & TCP_SOCK_DONE)
		e->bytes_in--;
	e->bytes_out = e->sock.role == UNKNOWN8 ? UNKNOWN64 : a.acked - (e->sock.role == TCP_ROLE_CLIENT);
	GET(e->retransmits, sk, tcp_sock, total_retrans);
	GET(e->srtt_us, sk, tcp_sock, srtt_us);
	e->srtt_us >>= 3;
	e->waited_ns = s && s->left ? (u64)(s->left - 1) * TCP_TICK_NS : UNKNOWN64;
	tcp_closes.ringbuf_submit(e, QUIET);
}

/* Its program, current, closes a connection. Where nothing has come since it last sent something, it does not wait for the answer any longer. Within one tick it
 * is not known what came first: a connection of which nothing ever came is told all the same. */
static __always_inline void tcp_leave(void *sk, struct tcp_socket *s)
{
	u32 now = bpf_jiffies64(), out = 0, in = 0, sent = 0, came = 0;
	GET(out, sk, tcp_sock, data_segs_out);
	GET(in, sk, tcp_sock, data_segs_in);
	GET(sent, sk, tcp_sock, lsndtime);
	GET(came, sk, inet_connection_sock, lrcvtime);
	if (out && (!in || (s32)(sent - came) > 0))
		s->left = now - sent + 1;
}

static __always_inline void tcp_established(void *sk, struct tcp_socket *s, u64 now, u8 old)
{
	if (old == TCP_SYN_SENT || (s && !s->established_ns && s->sock.role == TCP_ROLE_CLIENT)) {
		if (s) {
			s->established_ns = now;
			tcp_tuple(&s->sock, sk);	/* at SYN_SENT there may be no source port yet */
		}
		tcp_connect_done(sk, s, now, TCP_CONNECT_OK, UNKNOWN32);
		if (s)
			tcp_sample(sk, s);
		return;
	}
	u64 key = (u64)sk;
	struct tcp_socket accepted = {.established_ns = now};
	tcp_born(&accepted, sk, now, TCP_ROLE_SERVER);
	tcp_keep(sk, &accepted);
	s = tcp_sockets.lookup(&key);
	if (s)
		tcp_sample(sk, s);
}

static __always_inline void tcp_change(void *sk, u8 old, u8 new)
{
	u64 key = (u64)sk, now = bpf_ktime_get_boot_ns();
	u16 protocol = 0;
	struct tcp_socket *s;
	GET(protocol, sk, sock, sk_protocol);
	if (protocol != 6)	/* MPTCP, SCTP and DCCP share the tracepoint */
		return;
	s = tcp_sockets.lookup(&key);
	if (new == TCP_SYN_SENT || new == TCP_LISTEN) {
		struct tcp_socket fresh = {.user = bpf_get_current_pid_tgid()};
		tcp_born(&fresh, sk, now, TCP_ROLE_CLIENT);
		fill_proc(&fresh.proc, (void *)bpf_get_current_task());
		if (new == TCP_LISTEN)
			tcp_learn(&fresh.sock, &fresh.proc);
		else
			tcp_keep(sk, &fresh);
	} else if (new == TCP_ESTABLISHED) {
		tcp_established(sk, s, now, old);
	} else if (new == TCP_CLOSE && old == TCP_LISTEN) {
		struct sock_ref r = {};
		tcp_tuple(&r, sk);
		struct tcp_port port = {.netns = r.netns, .port = r.sport};
		tcp_listeners.delete(&port);
	} else if (old != TCP_CLOSE && old != TCP_LISTEN) {
		if (s && !s->user && tcp_owned(sk))
			tcp_used(s, bpf_get_current_pid_tgid());
		if (s && old == TCP_ESTABLISHED && s->sock.role == TCP_ROLE_CLIENT && tcp_owned(sk))
			tcp_leave(sk, s);
		if (s)
			tcp_serve(sk, s, false, new == TCP_CLOSE || new == TCP_FIN_WAIT1 || new == TCP_LAST_ACK);
		if (new != TCP_CLOSE)
			return;
		if (old == TCP_SYN_SENT || (s && !s->established_ns))
			tcp_connect_failed(sk, s, now);
		else if (old != TCP_SYN_RECV)
			tcp_closed(sk, s, now, old);
	}
}

/* Two programs on one tracepoint: since 6.2 (05b24ff9b2cf) the kernel does not run a program on a CPU where it is running, and a
 * softirq may interrupt the one that serves a process. */
int on_tcp_state(struct bpf_raw_tracepoint_args *ctx)
{
	void *sk = (void *)ctx->args[0];
	if (tcp_owned(sk))
		tcp_change(sk, ctx->args[1], ctx->args[2]);
	return 0;
}

int on_tcp_state_softirq(struct bpf_raw_tracepoint_args *ctx)
{
	void *sk = (void *)ctx->args[0];
	if (!tcp_owned(sk))
		tcp_change(sk, ctx->args[1], ctx->args[2]);
	return 0;
}

int on_tcp_destroy(struct bpf_raw_tracepoint_args *ctx)
{
	u64 key = ctx->args[0];
	tcp_forget(key);
	tcp_sockets.delete(&key);
	return 0;
}

/* Each segment that comes in, in windows: so that a socket has samples too which only sends, or is blocked in one long send. */
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
	if (s && tcp_sample(sk, s))
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

/* Current uses this socket (kernel TLS and the like in softirqs too). */
static __always_inline void tcp_moves(u64 sk, bool receives)
{
	u64 user = bpf_get_current_pid_tgid();
	u32 tid = user, tag = tcp_mixed(sk, user), now = tcp_gate(sk);
	struct tcp_hot *h = tcp_hot_of(sk);
	struct control *c = get_control();
	if (!h || !c)
		return;
	bool known = h->user == tag && (!receives || h->received == now);
	bool spare = receives && known && h->client && tcp_spare();
	if (known && !spare && !c->tcp_threads)
		return;
	struct tcp_thread *t = c->tcp_threads ? tcp_threads.lookup(&tid) : 0;
	if (known && !spare && !t)
		return;
	struct tcp_socket *s = tcp_sockets.lookup(&sk);
	if (!s || s->user != user)
		s = !receives || tcp_owned((void *)sk) ? tcp_new_user((void *)sk, s, user) : s;
	if (!s)
		return;
	if (receives && h->received != now && tcp_sample((void *)sk, s)) {
		h->received = now;
		tcp_serve((void *)sk, s, true, false);
		spare = true;
	}
	if (spare)
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

/* sock_send_length, since 6.3 (6e6eda44b939), in windows; before, the return of tcp_sendmsg, always, whose first argument is the socket too. */
int on_tcp_send(struct bpf_raw_tracepoint_args *ctx)
{
#if TP_sock_send_length
	u64 sk = ctx->args[0];
#else
	u64 sk = 0;	/* read, since the verifier takes a function's argument for a pointer, with which it forbids to calculate */
	bpf_probe_read_kernel(&sk, sizeof(sk), &ctx->args[0]);
#endif
	tcp_moves(sk, 0);
	return 0;
}

static __always_inline void tcp_sent_again(void *common, void *sk, u8 kind, u32 count)
{
	u64 key = (u64)sk;
	struct tcp_retransmit_event *e = tcp_retransmits.ringbuf_reserve(sizeof(*e));
	if (!e) {
		lose(LOST_tcp_retransmits);
		return;
	}
	__builtin_memset(e, 0, sizeof(*e));
	tcp_describe(&e->proc, &e->sock, common, tcp_sockets.lookup(&key));
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
	struct tcp_reset_event *e = tcp_resets.ringbuf_reserve(sizeof(*e));
	if (!e) {
		lose(LOST_tcp_resets);
		return;
	}
	__builtin_memset(e, 0, sizeof(*e));
	if (sk) {
		tcp_describe(&e->proc, &e->sock, sk, tcp_sockets.lookup(&key));
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
	e->complete = TP_tcp_send_reset >= 3;	/* before 6.10 a reset that belongs to no socket is not traced */
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
