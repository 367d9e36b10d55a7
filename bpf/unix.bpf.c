/* Unix stream sockets: clients, servers, and the time to an answer. Kernel 5.8 (ring buffer, boot clock). Driven by
 * agent/probes/unix.py.
 *
 * One hook: the kernel frees a buffer (consume_skb) when a process, the current task, has read it to its end. TCP frees
 * its buffers elsewhere, and buffers that a device has sent have a device. The buffer has the socket that wrote it,
 * which has its peer. The accepted end has its listener's name. What the server reads is a request; what its client
 * reads next is the answer, a little later than it was given if the client does not run.
 *
 * A server that reads a part, answers and then reads the rest (php-fpm) frees the buffer last: connections are known
 * from their accept on.
 *
 * State is kept by a hash of the server's end; connections that share a slot replace each other. Unread requests and
 * outstanding answers cause no event: on_unix_sweep checks twice a second (agent/probes/tcp.py). */

#define UNIX_PLACES_LOG2 12
#define UNIX_BUCKETS 48
#define UNIX_QUICK_NS 1000000		/* shorter ones are counted only */
#define UNIX_ANSWERED (~0ull)
#define UNIX_FLUSH_NS 100000000

struct unix_key {
	u32 pid;		/* the client */
	u32 server_pid;
	u64 id;
};

struct unix_value {
	u64 requests;
	u64 waiting;
	u64 sum_ns;
	u64 max_ns;
	u64 max_from_ns;
	struct proc proc;	/* the client */
	struct proc server;	/* of the slowest: tid read it */
	u8 addr[16];
	u16 port;
	u16 path_len;
	u32 dev;
	char path[108];
	u32 buckets[48];	/* UNIX_BUCKETS */
	u32 pad;
};

struct unix_place {
	u64 sk;			/* the server's end */
	u64 address;	/* its struct unix_address, and its inode: neither is reused as soon as its own address */
	u64 inode;		/* 0: accepted, and not read since */
	u64 id;
	u64 asked_ns;		/* 0: no request waits */
	u64 flushed_ns;
	u64 unread;		/* the first unread buffer at the last check, and since when */
	u64 unread_ns;		/* UNIX_ANSWERED: its answer was read before it was read to its end */
	u32 tid;
	u32 requests;		/* quick ones that are not reported yet */
	struct proc proc;	/* the server */
};

BPF_TABLE("hash", struct unix_key, struct unix_value, unix_a, 1024);
BPF_TABLE("hash", struct unix_key, struct unix_value, unix_b, 1024);
BPF_TABLE("array", u32, struct unix_value, unix_zero, 1);	/* never written: too large for the stack */
BPF_TABLE("array", u32, struct unix_place, unix_places, 1 << UNIX_PLACES_LOG2);
/* the slots' sockets, for the agent's sweep */
BPF_F_TABLE("array", u32, u64, unix_asking, 1 << UNIX_PLACES_LOG2, BPF_F_MMAPABLE);

#if HAS_unix_sock__addr && HAS_unix_sock__peer && HAS_socket_alloc__vfs_inode
static __always_inline u32 unix_place(u64 sk)
{
	return (sk >> 6) * 0x9e3779b97f4a7c15ull >> (64 - UNIX_PLACES_LOG2);
}

static __always_inline u64 unix_inode(void *sk)
{
	u64 inode = 0;
	void *socket = PTR(sk, sock, sk_socket);
	if (socket)
		READ(inode, ADDR(socket, socket_alloc, vfs_inode), inode, i_ino);
	return inode;
}

/* client: the requesting task, 0 if unknown. */
static __always_inline struct unix_value *unix_value_of(struct unix_place *p, void *client)
{
	u32 zero = 0;
	struct unix_key key = {.pid = client ? bpf_get_current_pid_tgid() >> 32 : 0, .server_pid = p->proc.pid, .id = p->id};
	struct control *c = get_control();
	if (!c || key.server_pid == c->agent_pid || (client && key.pid == c->agent_pid))
		return 0;
	bool slot = c->slot;
	struct unix_value *v = slot ? unix_b.lookup(&key) : unix_a.lookup(&key);
	if (v)
		return v;
	struct unix_value *none = unix_zero.lookup(&zero);
	if (!none)
		return 0;
	if (slot) {
		unix_b.insert(&key, none);
		v = unix_b.lookup(&key);
	} else {
		unix_a.insert(&key, none);
		v = unix_a.lookup(&key);
	}
	if (!v) {
		lose(LOST_unix_a);
		return 0;
	}
	v->server = p->proc;
	if (client)
		fill_proc(&v->proc, client);
	else
		no_proc(&v->proc);
	v->port = unix_peer_of(v->addr, p->id);
	u32 len = 0;
	void *address = (void *)p->address;
	READ(len, address, unix_address, len);
	if (len > UNIX_PATH + 2)	/* with the zero byte after the longest */
		len = UNIX_PATH + 2;
	if (len < 2)
		len = 2;
	v->path_len = len - 2;
	bpf_probe_read_kernel(v->path, sizeof(v->path), ADDR(address, unix_address, name) + 2);
	return v;
}

static __always_inline void unix_slowest(struct unix_value *v, struct unix_place *p, u64 ns, u64 from_ns)
{
	if (ns <= v->max_ns)
		return;
	v->max_ns = ns;
	v->max_from_ns = from_ns;
	v->server = p->proc;
	v->server.tid = p->tid;
}

static __always_inline void unix_begins(struct unix_place *p, u32 place, void *sk, void *address, u64 inode)
{
	__builtin_memset(p, 0, sizeof(*p));
	p->sk = (u64)sk;
	p->address = (u64)address;
	p->inode = inode;
	p->id = unix_id(sk, address);
	u64 *asking = unix_asking.lookup(&place);
	if (asking)
		*asking = (u64)sk;
}

static __always_inline void unix_serves(struct unix_place *p)
{
	u64 user = bpf_get_current_pid_tgid();
	if (p->proc.pid != user >> 32)
		fill_proc(&p->proc, (void *)bpf_get_current_task());
	p->tid = user;
}

/* The server, the current task, accepts a connection; its end has no inode yet. */
static __always_inline void unix_accepted(void *sk, void *address)
{
	u32 place = unix_place((u64)sk);
	struct unix_place *p = unix_places.lookup(&place);
	if (p) {
		unix_begins(p, place, sk, address, 0);
		unix_serves(p);
	}
}

/* The server, the current task, has read a request to the end of this buffer. */
static __always_inline void unix_asked(void *sk, void *address, u64 skb, u64 now)
{
	u32 place = unix_place((u64)sk);
	struct unix_place *p = unix_places.lookup(&place);
	u64 inode = unix_inode(sk);
	if (!p || !inode)
		return;
	if (p->sk != (u64)sk || (p->inode && p->inode != inode) || p->address != (u64)address)
		unix_begins(p, place, sk, address, inode);
	p->inode = inode;
	unix_serves(p);
	u64 from_ns = p->unread == skb ? p->unread_ns : now;
	p->unread = 0;
	if (from_ns != UNIX_ANSWERED)
		p->asked_ns = from_ns;
}

/* Its client, the current task, has read an answer. */
static __always_inline void unix_answered(void *sk, u64 address, u64 now)
{
	u32 place = unix_place((u64)sk);
	struct unix_place *p = unix_places.lookup(&place);
	if (!p || p->sk != (u64)sk)
		return;
	u64 from_ns = p->asked_ns;
	if (!from_ns && p->unread && p->unread_ns != UNIX_ANSWERED) {
		from_ns = p->unread_ns;
		p->unread_ns = UNIX_ANSWERED;
	}
	if (!from_ns)
		return;
	u64 ns = now - from_ns;
	p->asked_ns = 0;
	p->requests++;
	if (ns < UNIX_QUICK_NS && now - p->flushed_ns < UNIX_FLUSH_NS)
		return;
	if (ns >= UNIX_QUICK_NS) {
		u64 inode = unix_inode(sk);	/* 0: the server has closed it */
		if (inode ? p->inode != inode : p->address != address)
			return;	/* the request was another connection's, of a socket at the same address */
	}
	struct unix_value *v = unix_value_of(p, (void *)bpf_get_current_task());
	u32 requests = p->requests;
	p->flushed_ns = now;
	p->requests = 0;
	if (!v)
		return;
	__sync_fetch_and_add(&v->requests, requests);
	if (ns < UNIX_QUICK_NS)
		return;
	__sync_fetch_and_add(&v->sum_ns, ns);
	u32 bucket = log2_bucket(ns);
	if (bucket < UNIX_BUCKETS)
		__sync_fetch_and_add(&v->buckets[bucket], 1);
	unix_slowest(v, p, ns, from_ns);
}

int unix_on_read(struct bpf_raw_tracepoint_args *ctx)
{
	void *skb = (void *)ctx->args[0];
	u16 family = 0, type = 0;
	if (PTR(skb, sk_buff, dev))
		return 0;
	void *writer = PTR(skb, sk_buff, sk);
	if (!writer)
		return 0;
	READ(family, writer, sock_common, skc_family);
	READ(type, writer, sock, sk_type);
	if (family != UNIX_FAMILY || type != UNIX_STREAM)
		return 0;
	void *own = unix_address_of(writer);
	if (own) {
		u32 len = 0;
		READ(len, skb, sk_buff, len);
		if (len)
			unix_answered(writer, (u64)own, bpf_ktime_get_boot_ns());
		else
			unix_accepted(writer, own);
		return 0;
	}
	void *reader = PTR(writer, unix_sock, peer), *address = reader ? unix_address_of(reader) : 0;
	if (address)
		unix_asked(reader, address, (u64)skb, bpf_ktime_get_boot_ns());
	return 0;
}

/* Never attached: run for the slot args[0]. */
int on_unix_sweep(struct bpf_raw_tracepoint_args *ctx)
{
	u32 place = ctx->args[0];
	struct unix_place *p = unix_places.lookup(&place);
	u64 now = bpf_ktime_get_boot_ns(), from_ns;
	if (!p || !p->sk)
		return 0;
	void *sk = (void *)p->sk;
	u64 inode = unix_inode(sk);
	if (!p->inode)
		p->inode = inode;
	if (!inode || inode != p->inode || (u64)unix_address_of(sk) != p->address) {
		p->sk = 0;	/* it is closed */
		return 0;
	}
	from_ns = p->asked_ns;
	if (!from_ns) {
		void *queue = (void *)ADDR(sk, sock, sk_receive_queue), *first = PTR(queue, sk_buff_head, next);
		if (!first || first == queue) {
			p->unread = 0;
			return 1;
		}
		if (p->unread != (u64)first) {
			p->unread = (u64)first;
			p->unread_ns = now;
			return 1;
		}
		if (p->unread_ns == UNIX_ANSWERED)
			return 1;
		from_ns = p->unread_ns;
	}
	if ((s64)(now - from_ns) < UNIX_WAITING_NS)
		return 1;
	struct unix_value *v = unix_value_of(p, 0);
	if (v) {
		__sync_fetch_and_add(&v->waiting, 1);
		unix_slowest(v, p, now - from_ns, from_ns);
	}
	return 1;
}
#else
int unix_on_read(struct bpf_raw_tracepoint_args *ctx)
{
	return 0;
}

int on_unix_sweep(struct bpf_raw_tracepoint_args *ctx)
{
	return 0;
}
#endif
