/* Which processes' OpenSSL is read for what Redis is asked, what is kept of each connection, and which connection an SSL object is of. Beside bpf/redis_tls.bpf.c. */
#ifndef REDIS_STREAM
#error "redis_tls needs the redis family"
#endif

#define REDIS_TLS_BIO_METHOD (-40)	/* from a BIO's flags to its method, and to its descriptor (bpf/tls_ssl.h) */
#define REDIS_TLS_BIO_NUM 8
#define REDIS_TLS_SOCKET 0x505
#define REDIS_SYN_SENT 2
#define REDIS_AF_INET6 10

enum { REDIS_TLS_WRITE, REDIS_TLS_READ };

struct redis_tls_pid {
	u32 pid;
};

struct redis_tls_process {	/* written by the agent, but for the count */
	s32 rbio;		/* where an SSL has its read BIO, and a BIO its flags; negative for unknown */
	s32 bio_flags;
	u32 uid;
	u32 server;
	u32 most;		/* connections of interest */
	u32 connections;
};

struct redis_tls_owner {
	u32 uid;		/* UNKNOWN32: all users but root together */
};

struct redis_tls_key {
	u64 ssl;
	u32 pid;
	u32 pad;
};

struct redis_tls_connection {
	u64 flow;
	u64 tuple;		/* the same at both ends, 0 where it is not known */
	u32 netns;
	u16 server_port;
	u16 client_port;
	u8 server[16];
	u8 client[16];
};

struct redis_tls_call {		/* of a thread that is inside one */
	u64 ssl;
	u64 buffer;
	u64 count;		/* where SSL_read_ex and SSL_write_ex say how much it was */
	u64 now;
	u32 size;
	u32 kind;
};

struct redis_tls_user {		/* who connects to a Redis port */
	u64 t_ns;
	struct proc proc;
	u32 uid;
	u32 netns;
	u16 port;
	u16 loopback;
	u32 pad;
};

struct redis_tls_counts {
	u64 servers;		/* processes that are one; written by the agent */
	u64 refused;		/* connections beyond those of one process, one user, or all */
	u64 unplaced;		/* requests on connections of which nothing tells which they are, while servers here tell, too */
};

BPF_TABLE("hash", struct redis_tls_pid, struct redis_tls_process, redis_tls_processes, 256);
BPF_TABLE("hash", struct redis_tls_key, struct redis_tls_connection, redis_tls_connections, 32768);
BPF_TABLE("lru_hash", struct redis_tls_owner, s64, redis_tls_owned, 1024);	/* their connections */
BPF_TABLE("lru_hash", struct redis_tls_key, u8, redis_tls_refused, 4096);	/* counted already */
BPF_TABLE("lru_hash", u64, struct redis_tls_call, redis_tls_calls, 16384);
BPF_TABLE("lru_hash", u64, u32, redis_tls_clients, 16384);	/* who tells of a connection at its client's end */
BPF_F_TABLE("array", u32, struct redis_tls_counts, redis_tls_counts, 1, BPF_F_MMAPABLE);
BPF_RINGBUF_OUTPUT(redis_tls_users, 4);

static __always_inline struct redis_tls_process *redis_tls_process_of(u32 pid)
{
	struct redis_tls_pid key = {.pid = pid};
	return redis_tls_processes.lookup(&key);
}

static __always_inline void redis_tls_address(u8 *to, void *sk, bool v6, bool local)
{
	if (v6)
		bpf_probe_read_kernel(to, 16, local ? ADDR(sk, sock_common, skc_v6_rcv_saddr) : ADDR(sk, sock_common, skc_v6_daddr));
	else
		redis_mapped(to, local ? ADDR(sk, sock_common, skc_rcv_saddr) : ADDR(sk, sock_common, skc_daddr));
}

/* The socket that an SSL reads from, where it has one of OpenSSL's own BIOs for that; else 0. */
static __always_inline void *redis_tls_socket(struct redis_tls_process *p, u64 ssl)
{
	u64 bio = 0, method = 0;
	u32 type = 0, fd = 0;
	if (p->rbio < 0 || p->bio_flags < 40)
		return 0;
	bpf_probe_read_user(&bio, 8, (void *)(ssl + p->rbio));
	u64 flags = bio + p->bio_flags;
	bpf_probe_read_user(&method, 8, (void *)(flags + REDIS_TLS_BIO_METHOD));
	bpf_probe_read_user(&type, 4, (void *)method);
	if (type != REDIS_TLS_SOCKET)
		return 0;
	bpf_probe_read_user(&fd, 4, (void *)(flags + REDIS_TLS_BIO_NUM));
	void *file = file_of((void *)bpf_get_current_task(), fd);
	return file && (mode_of(file) & 0170000) == 0140000 ? sock_of(file) : 0;
}

/* The sequence number of the first byte that the client sent, which both ends know and nobody else: in a network namespace of his own anybody has any address. Read anew
 * where a segment came meanwhile. */
static __always_inline u32 redis_tls_first(void *sk, bool server)
{
	u32 at = 0, now = 0;
	u64 bytes = 0;
	u16 protocol = 0;
	READ(protocol, sk, sock, sk_protocol);
	if (protocol != 6)
		return 0;	/* MPTCP: it is no struct tcp_sock */
	for (int i = 0; i < 3; i++) {
		if (server) {
			READ(at, sk, tcp_sock, rcv_nxt);
			READ(bytes, sk, tcp_sock, bytes_received);
			READ(now, sk, tcp_sock, rcv_nxt);
		} else {
			READ(at, sk, tcp_sock, snd_una);
			READ(bytes, sk, tcp_sock, bytes_acked);
			READ(now, sk, tcp_sock, snd_una);
		}
		if (at == now)
			break;
	}
	return at - (u32)bytes + !server;	/* what was acknowledged begins with the SYN */
}

/* Both ends; false for a socket that is no client's of a Redis port, or no TCP's. */
static __always_inline bool redis_tls_ends(struct redis_tls_connection *c, void *sk, bool server)
{
	u16 family = 0, local = 0, remote = 0;
	u64 words[2];
	READ(family, sk, sock_common, skc_family);
	READ(local, sk, sock_common, skc_num);
	READ(remote, sk, sock_common, skc_dport);
	READ(c->netns, ADDR(PTR(sk, sock_common, skc_net), net, ns), ns_common, inum);
	remote = __builtin_bswap16(remote);
	c->server_port = server ? local : remote;
	c->client_port = server ? remote : local;
	bool v6 = family == REDIS_AF_INET6;
	if ((family != 2 && !v6) || (!server && !redis_port(remote)))
		return false;
	redis_tls_address(c->server, sk, v6, server);
	redis_tls_address(c->client, sk, v6, !server);
	u64 h = redis_mix((u64)redis_tls_first(sk, server) << 32 | (u32)c->server_port << 16 | c->client_port, 1);
	__builtin_memcpy(words, c->server, 16);
	h = redis_mix(redis_mix(h, words[0]), words[1]);
	__builtin_memcpy(words, c->client, 16);
	c->tuple = redis_mix(redis_mix(h, words[0]), words[1]);
	return true;
}

/* Whether a user, and all but root together, have room for another connection. */
static __always_inline bool redis_tls_room(u32 uid)
{
	struct redis_tls_owner one = {.uid = uid}, others = {.uid = UNKNOWN32};
	s64 *own = redis_tls_owned.lookup(&one), *all = redis_tls_owned.lookup(&others);
	return !uid || ((!own || *own < REDIS_TLS_A_USER) && (!all || *all < REDIS_TLS_OTHERS));
}

/* Of one user, or of all but root: one more, or one less. */
static __always_inline void redis_tls_count(u32 uid, s64 more)
{
	struct redis_tls_owner one = {.uid = uid};
	s64 none = 0, *n = redis_tls_owned.lookup(&one);
	if (!n) {
		redis_tls_owned.update(&one, &none);
		n = redis_tls_owned.lookup(&one);
	}
	if (n)
		__sync_fetch_and_add(n, more);
}

static __always_inline void redis_tls_own(u32 uid, s64 more)
{
	if (!uid)
		return;
	redis_tls_count(uid, more);
	redis_tls_count(UNKNOWN32, more);
}

/* A connection of interest; 0 where there is no room, or another one tells of it. */
static __always_inline struct redis_tls_connection *redis_tls_begin(struct redis_tls_process *p, struct redis_tls_key *key)
{
	u32 zero = 0;
	struct redis_tls_connection made = {.flow = (u64)bpf_get_prandom_u32() << 32 | bpf_get_prandom_u32()};
	struct redis_tls_counts *n = redis_tls_counts.lookup(&zero);
	void *sk = redis_tls_socket(p, key->ssl);
	if (!n)
		return 0;
	if (sk) {
		if (!redis_tls_ends(&made, sk, p->server))
			return 0;
	} else if (!p->server && n->servers) {
		__sync_fetch_and_add(&n->unplaced, 1);
		return 0;
	}
	if (p->connections >= p->most || !redis_tls_room(p->uid) || redis_tls_connections.update(key, &made)) {
		u8 once = 1;
		if (!redis_tls_refused.lookup(key) && !redis_tls_refused.update(key, &once))
			__sync_fetch_and_add(&n->refused, 1);
		return 0;
	}
	__sync_fetch_and_add(&p->connections, 1);
	redis_tls_own(p->uid, 1);
	if (!p->server && made.tuple)
		redis_tls_clients.update(&made.tuple, &key->pid);
	return redis_tls_connections.lookup(key);
}
