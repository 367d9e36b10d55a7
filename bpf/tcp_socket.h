/* State of a TCP socket: both ends, role, user. Before bpf/tcp.bpf.c in its family.
 *
 * A socket is known from SYN_SENT (client), ESTABLISHED (server) or its first event (older than the probe) until
 * tcp_destroy_sock, since a reset is sent after CLOSE. Those events precede any other event of a reused address, so the
 * address is a sufficient key. sock_lock.owned shows the context: set while a process, the current task, holds the
 * socket; clear in softirqs. */

#define TCP_RTT_BUCKETS 32
#define TCP_FIRST_READS 8	/* of an accepted connection: all of them are sampled */

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
	u64 user;		/* tgid and tid of the last user; 0: proc is the listener's, or unknown */
	u64 ssl;		/* of the tls family: its handshake, UNKNOWN64 once that has ended */
	u32 asked;		/* from here on of tcp_service.h, times in ticks: arrival of what was last read */
	u32 asked_until;	/* earlier reads are not sampled */
	u32 asked_tid;
	u32 in;			/* notes of that time */
	u32 out;
	u32 wrote;
	u32 busy;
	u32 left;		/* ticks that its program had waited for an answer at close, plus one; 0: it did not; UNKNOWN32: reported */
	u32 sent;		/* at the last RTT sample (tcp_rtt.h): segments with data, retransmitted ones, */
	u32 again;		/* and those of them that the peer already had */
	u32 doubled;
	u32 uid;		/* of `user` */
	u32 took;		/* the next byte to read at the last sample; HTTP/2 only */
	u8 asks;		/* an answer is outstanding */
	u8 seen;
	u8 frames;		/* it uses HTTP/2, without TLS */
	u8 reads;		/* that were sampled, up to TCP_FIRST_READS */
	u32 charged_uid;		/* the user whose share it and its events use (tcp_charge_client) */
	u32 measured;		/* when the segment of the last RACK round trip was sent, us, the low half */
	struct proc proc;
	struct sock_ref sock;
};

struct tcp_port {
	u32 netns;
	u16 port;
	u16 pad;
};

BPF_F_TABLE("hash", struct tcp_rtt_key, struct tcp_rtt_value, tcp_rtt_a, TCP_RTT_SOCKETS, ON_DEMAND);
BPF_F_TABLE("hash", struct tcp_rtt_key, struct tcp_rtt_value, tcp_rtt_b, TCP_RTT_SOCKETS, ON_DEMAND);
BPF_TABLE("array", u32, struct tcp_rtt_value, tcp_rtt_zero, 1);	/* never written: too large for the stack */
BPF_F_TABLE("hash", u64, struct tcp_socket, tcp_sockets, TCP_SOCKETS, ON_DEMAND);
/* tid UNKNOWN32: several processes use it; pid is then that of the one that started them, or UNKNOWN32. */
BPF_TABLE("lru_hash", struct tcp_port, struct proc, tcp_listeners, 4096);

/* A user's shares (over_share in tickscope.h). Of places, TCP_SOCKETS of the probe's options, those of a user. */
#define TCP_SOCKETS_EACH_NS 3600000000000ull
#define TCP_LISTENERS_EACH_NS 60000000000ull
#define TCP_LISTENERS_MOST 960
#define TCP_RTT_EACH_NS 320000	/* of sockets in an interval of a second */
#define TCP_RTT_MOST 960

/* Connections from this host, by tcp_local_key(): their clients' users, until a server on this host has accepted
 * them. */
BPF_TABLE("lru_hash", u64, u32, tcp_locals, 4096);

/* Caches: most hits repeat the last one on the same socket. One word each decides so without a look-up or a clock read;
 * sockets that share a slot only cost each other the look-up. Half words, since a hit costs a cache line. */
struct tcp_hot {
	u32 user;		/* the socket, mixed with the thread that last used it */
	u32 received;		/* the socket, mixed with the time of its last RTT sample at a receive */
	u32 seen;		/* ... at a segment that came in */
	u32 client;		/* the socket of `user`, if it is a client */
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

/* A socket begins or ends: clears another socket's cache entries in its slot. */
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

static __always_inline u32 tcp_uid(void *sk)
{
	u32 uid = 0;
	GET(uid, sk, sock, sk_uid);
	return uid;
}

/* Of both ends of a connection within a network namespace. A hash, since these programs have little stack left. */
static __always_inline u64 tcp_local_key(const struct sock_ref *r, bool client)
{
	const u64 *from = (const u64 *)(client ? r->saddr : r->daddr), *to = (const u64 *)(client ? r->daddr : r->saddr);
	u64 ports = client ? (u64)r->sport << 16 | r->dport : (u64)r->dport << 16 | r->sport;
	u64 key = (ports << 32 | r->netns) * TCP_MIX;
	key = (key ^ key >> 32 ^ from[0]) * TCP_MIX;
	key = (key ^ key >> 32 ^ from[1]) * TCP_MIX;
	key = (key ^ key >> 32 ^ to[0]) * TCP_MIX;
	key = (key ^ key >> 32 ^ to[1]) * TCP_MIX;
	return key ^ key >> 32;
}

/* A client has connected: if the server is on this host, the connection's other end is this user's, too. Else a
 * user who floods the servers of others would use up their shares. */
static __always_inline void tcp_charge_client(void *sk)
{
	struct sock_ref r = {};
	u32 uid = tcp_uid(sk);
	tcp_tuple(&r, sk);
	u64 key = tcp_local_key(&r, true);
	tcp_locals.update(&key, &uid);
}

/* The user of the other end, if it connected on this host a moment ago; else this end's. */
static __always_inline u32 tcp_client_uid(const struct sock_ref *r, u32 uid)
{
	u64 key = tcp_local_key(r, false);
	u32 *client = tcp_locals.lookup(&key);
	return client ? *client : uid;
}

/* The listener of a port. What it started may use the port, too; if others do, it is unknown. Process 1 listens for the
 * services that it starts. p: the current task's. */
static __always_inline void tcp_learn(const struct sock_ref *r, const struct proc *p, u32 uid)
{
	struct tcp_port key = {.netns = r->netns, .port = r->sport};
	struct proc *known = tcp_listeners.lookup(&key);
	if (!known) {
		if (no_place(uid, SHARE_LISTENERS, TCP_LISTENERS_EACH_NS, TCP_LISTENERS_MOST))
			lose(LOST_tcp_shares);
		else
			tcp_listeners.update(&key, (struct proc *)p);
#ifndef PIDNS_INUM
	} else if (known->pid == 1) {
		tcp_listeners.update(&key, (struct proc *)p);
#endif
	} else if (!tcp_same(known, p)) {
		u32 parent = 0;
		GET(parent, PTR(current_task(), task_struct, real_parent), task_struct, tgid);
		known->tid = UNKNOWN32;
		if (parent != known->pid)
			known->pid = UNKNOWN32;
	}
}

static __always_inline void tcp_listener_of(struct proc *p, const struct sock_ref *r)
{
	struct tcp_port key = {.netns = r->netns, .port = r->sport};
	struct proc *known = tcp_listeners.lookup(&key);
	if (known && known->tid != UNKNOWN32)
		*p = *known;
	else
		no_proc(p);
}

static __always_inline struct tcp_socket *tcp_keep(void *sk, struct tcp_socket *s)
{
	u64 key = (u64)sk;
	struct tcp_socket *old = tcp_sockets.lookup(&key);
	tcp_forget(key);
	if (old) {	/* it connects again */
		s->charged_uid = old->charged_uid;
	} else if (no_place(s->charged_uid, SHARE_SOCKETS, TCP_SOCKETS_EACH_NS, TCP_SOCKETS / 4)) {
		lose(LOST_tcp_shares);
		return 0;
	}
	if (tcp_sockets.update(&key, s)) {
		give_share_back(s->charged_uid, SHARE_SOCKETS, TCP_SOCKETS_EACH_NS);
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
	s->charged_uid = tcp_uid(sk);
	/* One CPU takes longer than 256 ns from one socket to the next. */
	s->sock.sock_id = tcp_cookie(sk, (now & ~255ull) | (bpf_get_smp_processor_id() & 255));
	if (role == TCP_ROLE_SERVER) {
		s->charged_uid = tcp_client_uid(&s->sock, s->charged_uid);
		tcp_listener_of(&s->proc, &s->sock);
	} else {
		no_proc(&s->proc);
	}
}

/* What this end has sent, and measured, so far. */
static __always_inline void tcp_sent_so_far(struct tcp_socket *to, void *sk)
{
	GET(to->sent, sk, tcp_sock, data_segs_out);
	GET(to->again, sk, tcp_sock, total_retrans);
#if HAS_tcp_sock__dsack_dups
	GET(to->doubled, sk, tcp_sock, dsack_dups);
#endif
#if HAS_tcp_sock__rack && HAS_tcp_rack__mstamp
	GET(to->measured, ADDR(sk, tcp_sock, rack), tcp_rack, mstamp);
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
		/* raw and netlink sockets may have protocol 6 and state 1 too, but are no SOCK_STREAM */
		return 0;
	tcp_account(&a, sk, state);
	tcp_born(&s, sk, now, a.role);
	s.established_ns = UNKNOWN64;
	tcp_sent_so_far(&s, sk);
	return tcp_keep(sk, &s);
}

/* Read once per program, since the agent may flip it in between. */
static __always_inline bool tcp_slot(void)
{
	struct control *c = get_control();
	return c && c->slot;
}

static __always_inline struct tcp_rtt_value *tcp_rtt_of(bool slot, struct tcp_rtt_key *key)
{
	return slot ? tcp_rtt_b.lookup(key) : tcp_rtt_a.lookup(key);
}

/* The current task uses this socket. */
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
	s->uid = uid_of(task);
	if (!s->user && s->sock.role == TCP_ROLE_SERVER)
		tcp_learn(&s->sock, &s->proc, s->uid);
	s->user = user;
	v = s->sampled ? tcp_rtt_of(tcp_slot(), &key) : 0;
	if (v)
		v->proc = s->proc;
}

/* Whether an event of a socket is beyond a user's share. Of sockets that are not known, all share one of the next kind.
 */
static __always_inline bool tcp_over(struct tcp_socket *s, u32 of, u64 each_ns, u64 most)
{
	if (!over_share(s ? s->charged_uid : UNKNOWN32, s ? of : of + 1, each_ns, most))
		return false;
	lose(LOST_tcp_shares);
	return true;
}

/* Fills a record with a socket's data. */
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
