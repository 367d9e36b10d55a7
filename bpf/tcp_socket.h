/* What is known of a TCP socket: both ends, role, who uses it. Before bpf/tcp.bpf.c in its family.
 *
 * A socket is known from SYN_SENT (client), ESTABLISHED (server) or the first time it is seen (it is older than the probe) until
 * tcp_destroy_sock: a reset is sent after CLOSE. Those events come before any other of a reused address, so the address is
 * key enough. sock_lock.owned tells the context: set while a process, then current, holds the socket; clear in softirqs. */

#define TCP_RTT_BUCKETS 32

struct tcp_rtt_key {
	u64 id;
};

struct tcp_rtt_value {
	u64 rtt_sum_us;
	u32 samples, rtt_min_us, rtt_max_us, srtt_us;
	u32 raw_min_us, raw_max_us;	/* UNKNOWN32, 0: none was seen */
	u32 segments, again, doubled, pad;
	struct proc proc;
	struct sock_ref sock;
	u32 buckets[32];	/* TCP_RTT_BUCKETS: a u32 of eighths of a microsecond needs 29 */
};

struct tcp_socket {
	u64 born_ns;
	u64 established_ns;	/* 0: not yet; UNKNOWN64: before it was first seen */
	u64 sampled;		/* an RTT sample was taken */
	u64 user;		/* tgid and tid that last used it; 0: proc is the listener's, or not known */
	u64 ssl;		/* kept by the tls family: whose handshake goes over it, UNKNOWN64 once that is over */
	u32 asked;		/* these are kept by tcp_service.h, times in ticks: when what was last read had come */
	u32 asked_until;	/* what is read before is not looked at */
	u32 asked_tid;
	u32 in;			/* notes of then */
	u32 out;
	u32 wrote;
	u32 busy;
	u32 left;		/* ticks that its program had waited for an answer when it closed the connection, and one; 0: it did not */
	u32 sent;		/* what the last RTT sample saw (tcp_rtt.h): segments with data, segments sent again, and those of them that the */
	u32 again;		/* peer had already */
	u32 doubled;
	u32 uid;		/* of who is `user` */
	u32 took;		/* the next byte that its process reads, when it was looked at last; of HTTP/2 only */
	u8 asks;		/* no answer was seen yet */
	u8 seen;
	u8 frames;		/* it speaks HTTP/2, without TLS */
	u8 pad;
	struct proc proc;
	struct sock_ref sock;
};

struct tcp_port {
	u32 netns;
	u16 port;
	u16 pad;
};

BPF_TABLE("hash", struct tcp_rtt_key, struct tcp_rtt_value, tcp_rtt_a, TCP_RTT_SOCKETS);
BPF_TABLE("hash", struct tcp_rtt_key, struct tcp_rtt_value, tcp_rtt_b, TCP_RTT_SOCKETS);
BPF_TABLE("array", u32, struct tcp_rtt_value, tcp_rtt_zero, 1);	/* never written: too large for the stack */
BPF_TABLE("hash", u64, struct tcp_socket, tcp_sockets, TCP_SOCKETS);
BPF_TABLE("lru_hash", struct tcp_port, struct proc, tcp_listeners, 1024);	/* pid UNKNOWN32: several processes listen */

/* Most hits find what the last one on the same socket found. One word each says so without a look-up or a clock read; sockets that
 * share a place only cost each other the look-up. Half words, since what a hit costs is a cache line. */
struct tcp_hot {
	u32 user;		/* the socket, mixed with the thread that last used it */
	u32 received;		/* the socket, mixed with the time of its last RTT sample at a receive */
	u32 seen;		/* ... at a segment that came in */
	u32 client;		/* the socket that `user` is of had connected */
};
#define TCP_PLACES_LOG2 12
BPF_ARRAY(tcp_hot, struct tcp_hot, 1 << TCP_PLACES_LOG2);
#define TCP_MIX 0x9e3779b97f4a7c15ull

static __always_inline u32 tcp_mixed(u64 sk, u64 with)
{
	u64 both = sk + with * TCP_MIX;
	return both ^ both >> 32;
}

static __always_inline u32 tcp_place(u64 sk)
{
	return (sk >> 6) * TCP_MIX >> (64 - TCP_PLACES_LOG2);
}

static __always_inline struct tcp_hot *tcp_hot_of(u64 sk)
{
	u32 place = tcp_place(sk);
	return tcp_hot.lookup(&place);
}

/* A socket begins or ends: what its place says was another's. */
static __always_inline void tcp_forget(u64 sk)
{
	struct tcp_hot *h = tcp_hot_of(sk);
	if (h)
		h->user = h->received = h->seen = 0;
}

static __always_inline bool tcp_same(const struct proc *a, const struct proc *b)
{
	return a->pid == b->pid && a->proc_start_ns == b->proc_start_ns;
}

/* Who listens on a port. Several processes: nobody, rather than the wrong one. */
static __always_inline void tcp_learn(const struct sock_ref *r, const struct proc *p)
{
	struct tcp_port key = {.netns = r->netns, .port = r->sport};
	struct proc *known = tcp_listeners.lookup(&key);
	if (!known)
		tcp_listeners.update(&key, (struct proc *)p);
	else if (!tcp_same(known, p))
		known->pid = UNKNOWN32;
}

static __always_inline void tcp_listener_of(struct proc *p, const struct sock_ref *r)
{
	struct tcp_port key = {.netns = r->netns, .port = r->sport};
	struct proc *known = tcp_listeners.lookup(&key);
	if (known && known->pid != UNKNOWN32)
		*p = *known;
	else
		no_proc(p);
}

static __always_inline struct tcp_socket *tcp_keep(void *sk, struct tcp_socket *s)
{
	u64 key = (u64)sk;
	tcp_forget(key);
	if (tcp_sockets.update(&key, s)) {
		lose(LOST_tcp_rtt_a);
		return 0;
	}
	return tcp_sockets.lookup(&key);
}

static __always_inline void tcp_born(struct tcp_socket *s, void *sk, u64 now, u8 role)
{
	tcp_tuple(&s->sock, sk);
	s->born_ns = now;
	s->sock.role = role;
	/* One CPU takes longer than 256 ns from one socket to the next. */
	s->sock.sock_id = tcp_cookie(sk, (now & ~255ull) | (bpf_get_smp_processor_id() & 255));
	if (role == TCP_ROLE_SERVER)
		tcp_listener_of(&s->proc, &s->sock);
	else
		no_proc(&s->proc);
}

/* What this end has sent so far. */
static __always_inline void tcp_sent_so_far(struct tcp_socket *to, void *sk)
{
	GET(to->sent, sk, tcp_sock, data_segs_out);
	GET(to->again, sk, tcp_sock, total_retrans);
#if HAS_tcp_sock__dsack_dups
	GET(to->doubled, sk, tcp_sock, dsack_dups);
#endif
}

/* A connection that is older than the probe. */
static __always_inline struct tcp_socket *tcp_adopt(void *sk, u64 now)
{
	struct tcp_socket s = {};
	struct tcp_sent a = {};
	u16 protocol = 0, type = 0;
	u8 state = tcp_state_of(sk);
	GET(protocol, sk, sock, sk_protocol);
	GET(type, sk, sock, sk_type);
	if (protocol != 6 || type != 1 || (state != TCP_ESTABLISHED && state != TCP_CLOSE_WAIT))
		return 0;	/* raw and netlink sockets may have protocol 6 and state 1 too, but are no SOCK_STREAM */
	tcp_account(&a, sk, state);
	tcp_born(&s, sk, now, a.role);
	s.established_ns = UNKNOWN64;
	tcp_sent_so_far(&s, sk);
	return tcp_keep(sk, &s);
}

/* Read once a program: the agent may flip it in between. */
static __always_inline bool tcp_slot(void)
{
	struct control *c = get_control();
	return c && c->slot;
}

static __always_inline struct tcp_rtt_value *tcp_rtt_of(bool slot, struct tcp_rtt_key *key)
{
	return slot ? tcp_rtt_b.lookup(key) : tcp_rtt_a.lookup(key);
}

/* Current uses this socket. */
static __always_inline void tcp_used(struct tcp_socket *s, u64 user)
{
	void *task = (void *)bpf_get_current_task();
	struct tcp_rtt_key key = {.id = s->sock.sock_id};
	struct tcp_rtt_value *v;
	u32 flags = 0;
	GET(flags, task, task_struct, flags);
	if (flags & PF_KTHREAD)
		return;
	fill_proc(&s->proc, task);
	if (!s->user && s->sock.role == TCP_ROLE_SERVER)
		tcp_learn(&s->sock, &s->proc);
	s->user = user;
	s->uid = uid_of(task);
	v = s->sampled ? tcp_rtt_of(tcp_slot(), &key) : 0;
	if (v)
		v->proc = s->proc;
}

/* What is known of a socket, for a record. */
static __always_inline void tcp_describe(struct proc *p, struct sock_ref *r, void *sk, struct tcp_socket *s)
{
	if (s) {
		*p = s->proc;
		*r = s->sock;
		if (!r->sport)
			tcp_tuple(r, sk);
		return;
	}
	tcp_tuple(r, sk);
	r->sock_id = tcp_cookie(sk, UNKNOWN64);
	r->role = UNKNOWN8;
	no_proc(p);
}
