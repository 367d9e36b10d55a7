/* A segment of a Redis connection in either direction: its connection, direction, data, and how to read it. */
struct redis_segment {
	void *skb;
	void *sk;
	u64 flow;
	u32 at;			/* start of its data in the buffer */
	u32 size;
	u32 seq;
	u32 ack;
	u32 netns;
	u16 server_port;
	u16 client_port;
	u8 reply;
	u8 at_server;
	u8 v6;
	u8 out;
};

#if KFUNC_bpf_dynptr_from_skb && KFUNC_bpf_path_d_path && FUNC_dynptr_read
/* Data in pages, as nearly all on loopback, can be read by these programs since 6.11; bpf_path_d_path of 6.12 indicates
 * such a kernel. */
struct redis_dynptr {
	u64 opaque[2];
};
static int (*redis_dynptr_from_skb)(void *skb, u64 flags, struct redis_dynptr *to) = (void *)(KFUNC_BASE + KFUNC_bpf_dynptr_from_skb);
static long (*redis_dynptr_read)(void *to, u64 size, const struct redis_dynptr *from, u64 at, u64 flags) = (void *)BPF_FUNC_dynptr_read;
#define REDIS_BYTES_BEGIN(skb) struct redis_dynptr redis_d; redis_dynptr_from_skb(skb, 0, &redis_d)
#define REDIS_BYTES(skb, at, to, size) redis_dynptr_read(to, size, &redis_d, at, 0)

/* The kernel's iterator (6.4) counts the pieces of a segment: the verifier then checks the loop's body a few times, not
 * 48 times. */
struct redis_count {
	u64 opaque;
};
static int (*redis_count_new)(struct redis_count *c, int from, int to) = (void *)(KFUNC_BASE + KFUNC_bpf_iter_num_new);
static int *(*redis_count_next)(struct redis_count *c) = (void *)(KFUNC_BASE + KFUNC_bpf_iter_num_next);
static void (*redis_count_destroy)(struct redis_count *c) = (void *)(KFUNC_BASE + KFUNC_bpf_iter_num_destroy);
#define REDIS_PIECES_BEGIN struct redis_count redis_c; redis_count_new(&redis_c, 0, REDIS_PIECES)
#define REDIS_PIECES_NEXT redis_count_next(&redis_c)
#define REDIS_PIECES_END redis_count_destroy(&redis_c)
#else
#define REDIS_BYTES_BEGIN(skb)
#define REDIS_BYTES(skb, at, to, size) (-1)
#define REDIS_PIECES_BEGIN u32 redis_c = 0
#define REDIS_PIECES_NEXT (redis_c++ < REDIS_PIECES)
#define REDIS_PIECES_END
#endif

/* A typed tracepoint's arguments are read by loads, as the verifier allows there: calling a helper for each would cost
 * more than all the rest. */
#define WALK(dst, ptr, s, f) ({ (dst) = *(typeof(dst) *)ADDR(ptr, s, f); })

/* The minimum of both, in a form that the verifier understands. */
static __always_inline u64 redis_most(u64 n, u64 most)
{
	asm volatile("" : "+r"(n));
	if (n > most)
		n = most;
	asm volatile("" : "+r"(n));
	return n;
}

static __always_inline bool redis_port(u32 port)
{
	u32 word = port >> 6;
	u64 *bits = redis_ports.lookup(&word);
	return bits && *bits >> (port & 63) & 1;
}

/* Bits of client ports: connections of which nothing was wanted yet are skipped first of all. The agent clears them at
 * intervals. */
static __always_inline u64 *redis_client(u32 port)
{
	u32 word = port >> 6;
	return redis_clients.lookup(&word);
}

static __always_inline void redis_unknow(u32 port)
{
	u64 *bits = redis_client(port);
	if (bits)
		__sync_fetch_and_and(bits, ~(1ull << (port & 63)));
}

static __always_inline bool redis_known(u32 port)
{
	u64 *bits = redis_client(port);
	return bits && *bits >> (port & 63) & 1;
}

static __always_inline void redis_mapped(u8 *to, const void *ipv4)
{
	__builtin_memset(to, 0, 10);
	to[10] = to[11] = 0xff;
	bpf_probe_read_kernel(to + 12, 4, ipv4);
}

static __always_inline void redis_address(u8 *to, struct redis_segment *s, bool local)
{
	if (s->v6)
		bpf_probe_read_kernel(to, 16, local ? ADDR(s->sk, sock_common, skc_v6_rcv_saddr) : ADDR(s->sk, sock_common, skc_v6_daddr));
	else
		redis_mapped(to, local ? ADDR(s->sk, sock_common, skc_rcv_saddr) : ADDR(s->sk, sock_common, skc_daddr));
}

static __always_inline u64 redis_mix(u64 h, u64 with)
{
	h = (h ^ with) * 0x9e3779b97f4a7c15ull;
	return h ^ h >> 29;
}

/* Finds the connection and the direction; false if it is no Redis connection. */
static __always_inline bool redis_ends(struct redis_segment *s, bool received)
{
	u16 dport, lport;
	WALK(lport, s->sk, sock_common, skc_num);
	WALK(dport, s->sk, sock_common, skc_dport);
	dport = __builtin_bswap16(dport);
	s->at_server = redis_port(lport);
	if (!s->at_server && !redis_port(dport))
		return false;
	s->reply = s->at_server != received;
	s->server_port = s->at_server ? lport : dport;
	s->client_port = s->at_server ? dport : lport;
	return !s->reply || redis_known(s->client_port);
}

static __always_inline void redis_hash(struct redis_segment *s)
{
	u64 words[2];
	u16 family;
	void *net;
	WALK(family, s->sk, sock_common, skc_family);
	WALK(net, s->sk, sock_common, skc_net);
	WALK(s->netns, ADDR(net, net, ns), ns_common, inum);
	s->v6 = family == 10;
	u64 h = redis_mix((u64)s->netns << 32 | (u32)s->server_port << 16 | s->client_port, 0);
	for (int i = 0; i < 2; i++) {
		redis_address((u8 *)words, s, s->at_server == !i);	/* the server's, then the client's */
		h = redis_mix(redis_mix(h, words[0]), words[1]);
	}
	s->flow = h;
}

/* Finds the data; false for a segment without any. */
static __always_inline bool redis_data(struct redis_segment *s)
{
	u16 transport = 0;
	u32 len, words[4];
	char *head, *data;
	WALK(head, s->skb, sk_buff, head);
	WALK(data, s->skb, sk_buff, data);
	WALK(transport, s->skb, sk_buff, transport_header);
	WALK(len, s->skb, sk_buff, len);
	if (bpf_probe_read_kernel(words, 16, head + transport))
		return false;
	s->seq = __builtin_bswap32(words[1]);
	s->ack = __builtin_bswap32(words[2]);
	s->at = (u32)(head + transport - data) + (((u8 *)words)[12] >> 4) * 4;
	s->size = len - s->at;
	return s->at < len && s->at < 512;
}

/* Whether it goes through a loopback device. */
static __always_inline bool redis_loops(void *skb)
{
	void *dev;
	u32 flags;
	WALK(dev, skb, sk_buff, dev);
	WALK(flags, dev, net_device, flags);
	return flags & 8;	/* IFF_LOOPBACK */
}

/* Whether it was received through the loopback device, whose number the socket keeps. */
static __always_inline bool redis_from_here(struct redis_segment *s)
{
	u32 ifindex = 0;
	READ(ifindex, s->skb, sk_buff, skb_iif);
	return ifindex == 1;
}
