/* What is known of a TCP socket: both ends, role, who uses it. Before bpf/tcp.bpf.c in its family.
 *
 * A socket is known from SYN_SENT (client), ESTABLISHED (server) or the first time it is seen (it is older than the probe) until
 * tcp_destroy_sock: a reset is sent after CLOSE. Those events come before any other of a reused address, so the address is
 * key enough. sock_lock.owned tells the context: set while a process, then current, holds the socket; clear in softirqs. */

#define TCP_THREADS 1		/* for families after this one: tcp_threads exists */
#define TCP_RTT_BUCKETS 32
#define TCP_SOCK_DONE 2		/* 1 << SOCK_DONE of enum sock_flags: the peer's FIN was received */

enum { TCP_ROLE_CLIENT, TCP_ROLE_SERVER };
enum { TCP_ESTABLISHED = 1, TCP_SYN_SENT, TCP_SYN_RECV, TCP_FIN_WAIT1, TCP_FIN_WAIT2, TCP_TIME_WAIT, TCP_CLOSE, TCP_CLOSE_WAIT,
       TCP_LAST_ACK, TCP_LISTEN, TCP_CLOSING, TCP_NEW_SYN_RECV };

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
	u32 spare;
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
/* A thread (tid) that makes calls of TLS handshakes, and what it did with sockets. Kept by the tls family; control.tcp_threads counts them, so
 * that nobody else looks while there is none. */
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

static __always_inline u32 tcp_netns(void *net)
{
	u32 inum = UNKNOWN32;
	if (net)
		GET(inum, ADDR(net, net, ns), ns_common, inum);
	return inum;
}

static __always_inline u8 tcp_state_of(void *sk)
{
	u8 state = 0;
	GET(state, sk, sock_common, skc_state);
	return state;
}

static __always_inline bool tcp_owned(void *sk)
{
	u32 owned = 0;
	GET(owned, sk, sock, owned);
	return owned;
}

static __always_inline void tcp_mapped(u8 *to, const void *ipv4)
{
	__builtin_memset(to, 0, 10);
	to[10] = to[11] = 0xff;
	bpf_probe_read_kernel(to + 12, 4, ipv4);
}

/* Both ends and the namespace of anything that starts with a sock_common: a socket, a request, a TIME_WAIT. */
static __always_inline void tcp_tuple(struct sock_ref *r, void *sk)
{
	u16 family = 0, dport = 0, sport = 0;
	u8 state = tcp_state_of(sk);
	GET(family, sk, sock_common, skc_family);
	GET(dport, sk, sock_common, skc_dport);
	GET(sport, sk, sock_common, skc_num);
	if (!sport && state != TCP_TIME_WAIT && state != TCP_NEW_SYN_RECV) {
		GET(sport, sk, inet_sock, inet_sport);	/* CLOSE gives the port back before it is traced */
		sport = __builtin_bswap16(sport);
	}
	r->netns = tcp_netns(PTR(sk, sock_common, skc_net));
	r->sport = sport;
	r->dport = __builtin_bswap16(dport);
	r->family = 0;
#if HAS_sock_common__skc_v6_daddr
	if (family == 10) {
		u64 high = 1;
		u32 low = 0;
		GET(r->saddr, sk, sock_common, skc_v6_rcv_saddr);
		GET(r->daddr, sk, sock_common, skc_v6_daddr);
		GET(high, sk, sock_common, skc_v6_daddr);
		bpf_probe_read_kernel(&low, 4, ADDR(sk, sock_common, skc_v6_daddr) + 8);
		r->family = high || low != 0xffff0000;	/* v4-mapped is IPv4 on the wire */
		return;
	}
#endif
	tcp_mapped(r->saddr, ADDR(sk, sock_common, skc_rcv_saddr));
	tcp_mapped(r->daddr, ADDR(sk, sock_common, skc_daddr));
}

/* Both ends as the receiver of a segment sees them. */
static __always_inline void tcp_tuple_of_segment(struct sock_ref *r, void *skb)
{
	u16 network = 0, transport = 0, ports[2] = {};
	u8 version = 0;
	char *head = PTR(skb, sk_buff, head);
	void *dev = PTR(skb, sk_buff, dev);
	GET(network, skb, sk_buff, network_header);
	GET(transport, skb, sk_buff, transport_header);
	bpf_probe_read_kernel(&version, 1, head + network);
	bpf_probe_read_kernel(ports, 4, head + transport);
	r->dport = __builtin_bswap16(ports[0]);
	r->sport = __builtin_bswap16(ports[1]);
	r->family = version >> 4 == 6;
	if (r->family) {
		bpf_probe_read_kernel(r->daddr, 16, head + network + 8);
		bpf_probe_read_kernel(r->saddr, 16, head + network + 24);
	} else {
		tcp_mapped(r->daddr, head + network + 12);
		tcp_mapped(r->saddr, head + network + 16);
	}
	if (dev)
		r->netns = tcp_netns(PTR(dev, net_device, nd_net));
}

static __always_inline u64 tcp_cookie(void *sk, u64 otherwise)
{
	u64 cookie = 0;
	GET(cookie, sk, sock_common, skc_cookie);
	return cookie ? cookie : otherwise;
}

struct tcp_sent {
	u64 acked;		/* bytes_acked without the FIN; with the SYN where this end connected */
	u8 role;
};

/* The kernel counts the SYN of a client and the FIN as acknowledged bytes, but not as sent ones: which tells the role. */
static __always_inline void tcp_account(struct tcp_sent *a, void *sk, u8 state)
{
	u64 sent = 0, again = 0;
	u32 una = 0, next = 0, end = 0;
	bool fin = state == TCP_FIN_WAIT1 || state == TCP_FIN_WAIT2 || state == TCP_CLOSING || state == TCP_LAST_ACK;
	GET(a->acked, sk, tcp_sock, bytes_acked);
	GET(sent, sk, tcp_sock, bytes_sent);
	GET(again, sk, tcp_sock, bytes_retrans);
	GET(una, sk, tcp_sock, snd_una);
	GET(next, sk, tcp_sock, snd_nxt);
	GET(end, sk, tcp_sock, write_seq);
	if (fin && una == end)
		a->acked--;
	u32 flying = next - una - (fin && una != end && next == end);
	u64 syn = a->acked - (sent - again - flying);
	a->role = syn == 1 ? TCP_ROLE_CLIENT : syn == 0 ? TCP_ROLE_SERVER : UNKNOWN8;
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
