/* Connects, accepted sockets and connection ends: each change of a socket's state. Before bpf/tcp.bpf.c in its family.
 */

#define TCP_EADDRNOTAVAIL 99
#define TCP_SHUT_BOTH 3		/* SHUTDOWN_MASK */
#define TCP_GIVEN_UP_NS 100000000	/* shorter waits may be ends of one-way messages */

enum { TCP_CONNECT_OK, TCP_CONNECT_FAILED, TCP_CONNECT_ABORTED };

struct tcp_connect_event {
	u64 t_ns;
	struct proc proc;
	struct sock_ref sock;
	u64 duration_ns;
	u32 errno;
	u8 result;
	u8 pad2[3];
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

/* Of 4 KB. They have room for all shares; see tests/unit/test_users_shares.py. */
#define TCP_CONNECT_PAGES 512
#define TCP_CLOSE_PAGES 1024
/* A user's shares. Both ends of a connection within the host count for the client's user. */
#define TCP_CONNECT_EACH_NS 50000
#define TCP_CONNECT_MOST 2048
#define TCP_CLOSE_EACH_NS 40000
#define TCP_CLOSE_MOST 3840
BPF_RINGBUF_OUTPUT(tcp_connects, TCP_CONNECT_PAGES);
BPF_RINGBUF_OUTPUT(tcp_closes, TCP_CLOSE_PAGES);

static __always_inline void tcp_connect_done(void *sk, struct tcp_socket *s, u64 now, u8 result, u32 err)
{
	struct tcp_connect_event *e;
	if (tcp_over(s, SHARE_CONNECTS, TCP_CONNECT_EACH_NS, TCP_CONNECT_MOST))
		return;
	e = tcp_connects.ringbuf_reserve(sizeof(*e));
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
	tcp_connects.ringbuf_submit(e, wake_each(LOST_tcp_connects, RING_QUARTER(TCP_CONNECT_PAGES, *e)));
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
	else	/* no SYN left the host; without a port there was none available */
		tcp_connect_done(sk, s, now, TCP_CONNECT_FAILED, port ? UNKNOWN32 : TCP_EADDRNOTAVAIL);
}

static __always_inline void tcp_closed(void *sk, struct tcp_socket *s, u64 now, u8 old)
{
	u64 flags = 0;
	struct tcp_sent a = {};
	struct tcp_close_event *e;
	if (tcp_over(s, SHARE_CLOSES, TCP_CLOSE_EACH_NS, TCP_CLOSE_MOST))
		return;
	e = tcp_closes.ringbuf_reserve(sizeof(*e));
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
	tcp_closes.ringbuf_submit(e, wake_each(LOST_tcp_closes, RING_QUARTER(TCP_CLOSE_PAGES, *e)));
}

/* Its program, the current task, closes a connection. If nothing has arrived since it last sent, it gives up the
 * answer. Within one tick the order is unknown: a connection on which nothing ever arrived is reported in any case. */
static __always_inline void tcp_leave(void *sk, struct tcp_socket *s)
{
	u32 now = bpf_jiffies64(), out = 0, in = 0, sent = 0, came = 0, una = 0, wrote = 0, acked = 0;
	GET(out, sk, tcp_sock, data_segs_out);
	GET(in, sk, tcp_sock, data_segs_in);
	GET(una, sk, tcp_sock, snd_una);
	GET(wrote, sk, tcp_sock, write_seq);
	GET(sent, sk, tcp_sock, lsndtime);
	if (una != wrote) {	/* that may be a retransmission; since data is under way, or the last acknowledgement */
		GET(sent, sk, tcp_sock, chrono_start);
		GET(acked, sk, tcp_sock, rcv_tstamp);
		sent = (s32)(acked - sent) > 0 ? acked : sent;
	}
	GET(came, sk, inet_connection_sock, lrcvtime);
	if (out && (!in || (s32)(sent - came) > 0))
		s->left = now - sent + 1;
}

/* Whether it gives up an answer now: it closes, and does not only say that it sends no more. Its connection ends for it
 * here; where the network is cut, the kernel tries for minutes to tell the other end. */
static __always_inline bool tcp_gives_up(void *sk, struct tcp_socket *s, u8 new)
{
	u8 shut = 0;
	if (!s || new != TCP_FIN_WAIT1 || (u64)s->left * TCP_TICK_NS < TCP_GIVEN_UP_NS)
		return false;
#if HAS_sock__sk_shutdown
	GET(shut, sk, sock, sk_shutdown);
#endif
	return shut == TCP_SHUT_BOTH;
}

static __always_inline void tcp_established(void *sk, struct tcp_socket *s, u64 now, u8 old)
{
	if (old == TCP_SYN_SENT || (s && !s->established_ns && s->sock.role == TCP_ROLE_CLIENT)) {
		if (s) {
			s->established_ns = now;
			tcp_tuple(&s->sock, sk);	/* at SYN_SENT there may be no source port yet */
		}
		tcp_charge_client(sk);
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
			tcp_learn(&fresh.sock, &fresh.proc, fresh.charged_uid);
		else
			tcp_keep(sk, &fresh);
	} else if (new == TCP_ESTABLISHED) {
		tcp_established(sk, s, now, old);
	} else if (new == TCP_CLOSE && old == TCP_LISTEN) {
		struct sock_ref r = {};
		tcp_tuple(&r, sk);
		struct tcp_port port = {.netns = r.netns, .port = r.sport};
		if (!tcp_listeners.delete(&port))
			give_share_back(tcp_uid(sk), SHARE_LISTENERS, TCP_LISTENERS_EACH_NS);
	} else if (old != TCP_CLOSE && old != TCP_LISTEN) {
		if (s && !s->user && tcp_owned(sk))
			tcp_used(s, bpf_get_current_pid_tgid());
		if (s && old == TCP_ESTABLISHED && s->sock.role == TCP_ROLE_CLIENT && tcp_owned(sk))
			tcp_leave(sk, s);
		if (s)
			tcp_serve(sk, s, false, new == TCP_CLOSE || new == TCP_FIN_WAIT1 || new == TCP_LAST_ACK);
		bool gives_up = tcp_gives_up(sk, s, new);
		if ((new != TCP_CLOSE && !gives_up) || (s && s->left == UNKNOWN32))
			return;
		if (old == TCP_SYN_SENT || (s && !s->established_ns))
			tcp_connect_failed(sk, s, now);
		else if (old != TCP_SYN_RECV)
			tcp_closed(sk, s, now, old);
		if (s && gives_up)
			s->left = UNKNOWN32;	/* reported */
	}
}

/* Two programs on one tracepoint: since 6.2 (05b24ff9b2cf) the kernel does not run a program on a CPU where it is
 * running, and a softirq may interrupt the program that runs for a process. */
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
	struct tcp_socket *s = tcp_sockets.lookup(&key);
	tcp_forget(key);
	if (!s)
		return 0;
	u32 charged_uid = s->charged_uid;
	if (!tcp_sockets.delete(&key))
		give_share_back(charged_uid, SHARE_SOCKETS, TCP_SOCKETS_EACH_NS);
	return 0;
}
