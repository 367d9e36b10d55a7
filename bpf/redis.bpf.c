/* Segments of Redis connections that begin with a limiter's command, and the answers to them.
 *
 * tcp_probe sees each segment that a TCP socket receives here, net_dev_queue each that one sends out of this host or network namespace: together
 * both ways of a connection with an end here. Minimum kernel: 5.8, and a way to read what lies in pages (redis_bytes); agent/probes/redis.py
 * says when they are attached. A connection is followed in one of two ways:
 *   FIRST  of each request only such segments whose first command is a limiter's, with what continues them and what answers them
 *   WHOLE  all of it: since somebody sends before the answer to the last request came, or a limiter's command was behind another one
 * What is over the budget is counted (redis_switch.asked), and a gap in the connection. */
#define REDIS_PIECE 384
#define REDIS_PIECES 48		/* of one segment: 18 KiB, the text of a script with its arguments */
#define REDIS_HEAD 64
#define REDIS_SAMPLE_NS 1000000000	/* of one connection, from sample to sample */

enum { REDIS_FIRST, REDIS_WHOLE, REDIS_IGNORED };
enum { REDIS_NOTHING, REDIS_SCRIPT, REDIS_WINDOW };	/* what a first command may be: of redis_commands */

struct redis_piece {
	u64 t_ns;
	u64 flow;		/* one connection, as one network namespace knows it */
	u64 idle_ns;		/* since the segment before, either way */
	u32 seq;		/* of the first byte */
	u32 ack;
	u32 end;		/* sequence number behind the segment */
	u32 netns;
	u16 size;
	u16 server_port;
	u16 client_port;
	u8 reply;
	u8 first;		/* of its segment */
	u8 gap;			/* requests before this one were left out */
	u8 state;
	u8 at_server;		/* proc is the server's, else the client's */
	u8 pad;
	u32 skipped;		/* of the connection's requests for decisions, left out since the last one */
	u8 server[16];		/* IPv4 as v4-mapped */
	u8 client[16];
	struct proc proc;
	u8 data[384];
};

struct redis_flow {
	u64 seen_ns;
	u64 until_ns;		/* of being ignored */
	u64 sampled_ns;
	u32 state;
	u32 skipped;
	u8 pending;		/* the last segment was a request */
	u8 left_out;		/* the last request was */
	u8 limits;		/* a limiter's request came */
	u8 pad[5];
};

struct redis_name {
	char text[16];		/* capitals */
};

/* Written by the agent, but for the counts. */
struct redis_switch {
	u64 asked;		/* requests that begin with a script's or module's command */
	u64 told;		/* of these, handed over */
	u64 each_ns;		/* a user's share of decisions (bpf/tickscope.h), of who has the end that is here: one each so many ns ... */
	u64 most;		/* ... and so many at once */
	u64 piece_ns;		/* of records, of all together: so many at once as fit in ... */
	u64 piece_room_ns;
	u64 piece_until_ns;
	u64 cut;		/* segments that the budget of records left out, or cut short */
	u64 encrypted;		/* segments of requests in TLS, of which nothing can be read */
	u64 remote;		/* segments that were wanted and came from elsewhere, or went there */
	u32 lengths[32];	/* of redis_commands, by their first letter: a bit a length, so that most others need no look-up */
	u64 least;		/* words of a request whose command has three letters (SET), before it is looked up */
	u64 samples;		/* further requests that are handed over, whatever they begin with: a limiter's command may be behind another */
};

BPF_F_TABLE("array", u32, struct redis_switch, redis_switch, 1, BPF_F_MMAPABLE);
BPF_F_TABLE("array", u32, u64, redis_ports, 1024, BPF_F_MMAPABLE);	/* a bit a port */
BPF_F_TABLE("array", u32, u64, redis_clients, 1024, BPF_F_MMAPABLE);	/* the same of clients' ports */
BPF_TABLE("hash", struct redis_name, u32, redis_commands, 256);	/* which of the above, and in the second byte the least words of the request */
BPF_TABLE("lru_hash", u64, struct redis_flow, redis_flows, 8192);
BPF_RINGBUF_OUTPUT(redis_pieces, 256);	/* what may come at once, and in 100 ms */

/* A segment of either way. */
struct redis_segment {
	void *skb;
	void *sk;
	u64 flow;
	u32 at;			/* where its data begin in the buffer */
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
/* What lies in pages, which nearly all of it does on loopback, these programs may read since 6.11; bpf_path_d_path of 6.12 tells such a kernel. */
struct redis_dynptr {
	u64 opaque[2];
};
static int (*redis_dynptr_from_skb)(void *skb, u64 flags, struct redis_dynptr *to) = (void *)(KFUNC_BASE + KFUNC_bpf_dynptr_from_skb);
static long (*redis_dynptr_read)(void *to, u64 size, const struct redis_dynptr *from, u64 at, u64 flags) = (void *)BPF_FUNC_dynptr_read;
#define REDIS_BYTES_BEGIN(skb) struct redis_dynptr redis_d; redis_dynptr_from_skb(skb, 0, &redis_d)
#define REDIS_BYTES(skb, at, to, size) redis_dynptr_read(to, size, &redis_d, at, 0)
#else
#define REDIS_BYTES_BEGIN(skb)
#define REDIS_BYTES(skb, at, to, size) (-1)
#endif

/* What a tracepoint with types gives is followed by loads, as the verifier allows there: a helper's call each would cost more than all the rest. */
#define WALK(dst, ptr, s, f) ({ (dst) = *(typeof(dst) *)ADDR(ptr, s, f); })

/* The least of both, in a way that the verifier sees. */
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

/* Connections of which nothing was wanted yet are told by a bit of their client's port, before anything else is done. The agent clears them at times. */
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

/* Which connection, which way; false for what is no Redis's. */
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

/* Where its data are; false for a segment without any. */
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

static __always_inline u64 redis_capitals(u64 text)
{
	u64 low = text & 0x7f7f7f7f7f7f7f7full;
	u64 letters = ~text & ((low + 0x1f1f1f1f1f1f1f1full) ^ (low + 0x0505050505050505ull)) & 0x8080808080808080ull;
	return text - (letters >> 2);
}

static __always_inline u64 redis_mask(u64 bytes)
{
	return bytes >= 8 ? ~0ull : (1ull << bytes * 8) - 1;
}

/* What a command is that redis_commands has; nothing where the request has fewer words than it says. */
static __always_inline u32 redis_meant(const u8 *head, const u32 *what)
{
	u32 w = what ? *what : REDIS_NOTHING;
	return head[2] == '\r' && (u32)(head[1] & 15) < w >> 8 ? REDIS_NOTHING : w & 255;
}

/* What a request begins with: *NUMBER $LENGTH NAME. Without loops and with few branches, each of which the verifier would follow to the end:
 * of a digit bit 5 is set, of a carriage return it is not. */
static __always_inline u32 redis_what(const u8 *head, struct redis_switch *w)
{
	struct redis_name n;
	u64 *words = (u64 *)&n;
	u8 length[4] = {};
	if (head[0] != '*')
		return REDIS_NOTHING;
	if (head[2] == '\r' && head[6] == '\r') {	/* most */
		u64 bytes = head[5] & 15;
		if (!(w->lengths[head[8] & 31] >> bytes & 1))
			return REDIS_NOTHING;
		if (bytes == 3 && (head[1] & 15) < w->least)	/* nearly each SET */
			return REDIS_NOTHING;
		words[0] = redis_capitals(((u64 *)head)[1]) & redis_mask(bytes);
		words[1] = redis_capitals(((u64 *)head)[2]) & redis_mask(bytes < 8 ? 0 : bytes - 8);
		return redis_meant(head, redis_commands.lookup(&n));
	}
	u64 two = head[2] >> 5 & 1, three = head[3] >> 5 & two, four = head[4] >> 5 & three;
	u64 at = redis_most(two + three + four, 3);
	bpf_probe_read_kernel(length, 4, head + 4 + at);	/* behind the first digit, a line's end and the dollar: $ is there, if any */
	bpf_probe_read_kernel(&n, 16, head + 8 + at);
	u64 digits = length[2] >> 5 & 1;
	if (length[0] != '$')
		return REDIS_NOTHING;
	if (digits)
		bpf_probe_read_kernel(&n, 16, head + 9 + at);
	u64 bytes = digits ? (length[1] & 15) * 10 + (length[2] & 15) : length[1] & 15;
	if (bytes > 16)
		return REDIS_NOTHING;
	words[0] = redis_capitals(words[0]) & redis_mask(bytes);
	words[1] = redis_capitals(words[1]) & redis_mask(bytes < 8 ? 0 : bytes - 8);
	return redis_meant(head, redis_commands.lookup(&n));
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

/* Whether what was received came through the loopback device: the socket keeps its number. */
static __always_inline bool redis_from_here(struct redis_segment *s)
{
	u32 ifindex = 0;
	READ(ifindex, s->skb, sk_buff, skb_iif);
	return ifindex == 1;
}

static __always_inline void redis_who(struct redis_piece *e, struct redis_segment *s)
{
	no_proc(&e->proc);
#ifdef TCP_THREADS
	u64 id = (u64)s->sk;
	struct tcp_socket *t = tcp_sockets.lookup(&id);
	if (t)
		e->proc = t->proc;
#endif
}

/* Whether a segment is to be handed over, which its flow then knows. */
static __always_inline bool redis_wanted(struct redis_flow *f, struct redis_switch *w, struct redis_segment *s, u64 now, bool begins,
					 u32 what, bool sampled, bool *gap)
{
	bool overlap = !s->reply && begins && f->pending, keep;
	f->pending = !s->reply;
	if (f->state == REDIS_IGNORED) {
		if (now < f->until_ns)
			return false;
		f->state = REDIS_FIRST;
	}
	if (overlap)
		f->state = REDIS_WHOLE;
	if (s->reply || !begins)
		return !f->left_out;
	keep = what || sampled || f->state == REDIS_WHOLE;
	if (what == REDIS_SCRIPT) {
		__sync_fetch_and_add(&w->asked, 1);
		u32 uid;
		WALK(uid, s->sk, sock, sk_uid);
		keep = !over_share(uid, SHARE_REDIS, w->each_ns, w->most);
		if (keep)
			__sync_fetch_and_add(&w->told, 1);
		else
			f->skipped++;
	}
	*gap = f->left_out;
	f->left_out = !keep;
	return keep;
}

static __always_inline int redis_segment(struct redis_segment *s)
{
	u8 head[REDIS_HEAD] __attribute__((aligned(8))) = {};
	u32 zero = 0, what = REDIS_NOTHING, done = 0;
	u64 now, idle = UNKNOWN64;
	bool begins = false, sampled = false, gap = false;
	struct redis_switch *w = redis_switch.lookup(&zero);
	if (!w || !redis_data(s))
		return 0;
	REDIS_BYTES_BEGIN(s->skb);
	if (!s->reply) {
		u64 n = redis_most(s->size, REDIS_HEAD);
		if (REDIS_BYTES(s->skb, s->at, head, n))
			return 0;
		begins = head[0] == '*';
		what = redis_what(head, w);
		if (what == REDIS_WINDOW && head[5] == '3' && head[6] == '\r' && s->size > REDIS_PIECE)
			what = REDIS_NOTHING;	/* a SET as long makes no counter */
		if (!what && head[0] == 0x17 && head[1] == 3) {	/* a record of data */
			__sync_fetch_and_add(&w->encrypted, 1);
			return 0;
		}
		if (!what && !w->samples && !redis_known(s->client_port))
			return 0;
	}
	now = bpf_ktime_get_boot_ns();
	redis_hash(s);
	struct redis_flow *f = redis_flows.lookup(&s->flow);
	if (begins && !what && w->samples && (!f || now - f->sampled_ns > REDIS_SAMPLE_NS)) {
		w->samples--;
		sampled = true;
	}
	if (what || sampled) {
		u64 *bits = redis_client(s->client_port), bit = 1ull << (s->client_port & 63);
		if (bits && !(*bits & bit))
			__sync_fetch_and_or(bits, bit);
	}
	if (!f) {
		struct redis_flow made = {};
		if (s->reply || !(what || sampled))
			return 0;
		made.left_out = 1;
		redis_flows.update(&s->flow, &made);
		f = redis_flows.lookup(&s->flow);
		if (!f)
			return 0;
	}
	if (sampled)
		f->sampled_ns = now;
	if (what)
		f->limits = 1;
	if (f->seen_ns)
		idle = now - f->seen_ns;
	f->seen_ns = now;
	if (!redis_wanted(f, w, s, now, begins, what, sampled, &gap)) {
		if (!f->limits && f->state != REDIS_WHOLE) {
			redis_unknow(s->client_port);
			f->pending = 0;		/* its answer is not looked at */
		}
		return 0;
	}
	if (s->out || (!s->reply && !redis_from_here(s)))
		w->remote++;
	u32 state = f->state, skipped = f->skipped;
	if (begins)
		f->skipped = 0;
#pragma clang loop unroll(disable)
	for (int i = 0; i < REDIS_PIECES; i++) {
		if (done >= s->size)
			break;
		if (!share_taken(&w->piece_until_ns, now, w->piece_ns, w->piece_room_ns)) {
			f->left_out = 1;
			__sync_fetch_and_add(&w->cut, 1);
			break;
		}
		struct redis_piece *e = redis_pieces.ringbuf_reserve(sizeof(*e));
		if (!e) {
			f->left_out = 1;
			lose(LOST_redis_pieces);
			break;
		}
		e->size = redis_most(s->size - done, REDIS_PIECE);
		u64 n = redis_most(*(volatile u16 *)&e->size, REDIS_PIECE);	/* as if it were another: one path for the verifier */
		if (REDIS_BYTES(s->skb, s->at + done, e->data, n)) {
			redis_pieces.ringbuf_discard(e, QUIET);
			f->left_out = 1;
			break;
		}
		e->t_ns = now;
		e->flow = s->flow;
		e->idle_ns = idle;
		e->seq = s->seq + done;
		e->ack = s->ack;
		e->end = s->seq + s->size;
		e->netns = s->netns;
		e->server_port = s->server_port;
		e->client_port = s->client_port;
		e->reply = s->reply;
		e->first = !i;
		e->gap = gap;
		e->state = state;
		e->at_server = s->at_server;
		e->pad = 0;
		e->skipped = skipped;
		if (!i) {	/* the others have what the first has */
			redis_address(e->server, s, s->at_server);
			redis_address(e->client, s, !s->at_server);
			redis_who(e, s);
		}
		done += *(volatile u16 *)&e->size;
		redis_pieces.ringbuf_submit(e, QUIET);
	}
	return 0;
}

int redis_in(struct bpf_raw_tracepoint_args *ctx)
{
	struct redis_segment s = {.sk = (void *)ctx->args[0], .skb = (void *)ctx->args[1]};
	return redis_ends(&s, true) ? redis_segment(&s) : 0;
}

int redis_out(struct bpf_raw_tracepoint_args *ctx)
{
	struct redis_segment s = {.skb = (void *)ctx->args[0], .out = 1};
	u16 protocol;
	u8 state;
	if (redis_loops(s.skb))	/* its receiver is here */
		return 0;
	WALK(s.sk, s.skb, sk_buff, sk);
	if (!s.sk)
		return 0;
	WALK(state, s.sk, sock_common, skc_state);
	WALK(protocol, s.sk, sock, sk_protocol);
	if (state == 6 || state >= 12 || protocol != 6)	/* TIME_WAIT and NEW_SYN_RECV are no whole sockets */
		return 0;
	return redis_ends(&s, false) ? redis_segment(&s) : 0;
}
