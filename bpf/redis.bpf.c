/* Segments of Redis connections that begin with a limiter's command, and the replies to them.
 *
 * tcp_probe sees each segment that a local TCP socket receives, net_dev_queue each that one sends out of this host or
 * network namespace: together both directions of a connection with an end here. Minimum kernel: 5.8, and a way to read
 * data in pages (redis_bytes); agent/probes/redis.py decides when they are attached. A connection is followed in one of
 * two modes:
 *
 * FIRST  only segments whose first command is a limiter's, with their continuations and replies
 * WHOLE  everything, since the client sends before the last reply came, or a limiter's command was behind another one
 *
 * What exceeds the budget is counted (redis_switch.asked), and marked as a gap in the connection. */

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

/* Whether a segment is to be sent; updates its flow. */
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
			__sync_fetch_and_add(&w->sent, 1);
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
	bool begins = false, sampled = false, gap = false, first = true;
	struct redis_switch *w = redis_switch.lookup(&zero);
	if (!w || !redis_data(s))
		return 0;
	REDIS_BYTES_BEGIN(s->skb);
	if (!s->reply) {
		u64 n = redis_most(s->size, REDIS_HEAD);
		if (REDIS_BYTES(s->skb, s->at, head, n))
			return 0;
		begins = head[0] == '*';
		what = redis_command_kind(head, w);
		if (what == REDIS_WINDOW && head[5] == '3' && head[6] == '\r' && s->size > REDIS_PIECE)
			what = REDIS_NOTHING;	/* so long a SET creates no counter */
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
			f->pending = 0;	/* its reply is not read */
		}
		return 0;
	}
	if (s->out || (!s->reply && !redis_from_here(s)))
		w->remote++;
	u32 state = f->state, skipped = f->skipped;
	if (begins)
		f->skipped = 0;
	REDIS_PIECES_BEGIN;
#pragma clang loop unroll(disable)
	while (REDIS_PIECES_NEXT) {
		if (done >= s->size)
			break;
		if (!share_taken(&w->piece_until_ns, now, w->piece_ns, w->piece_room_ns, false)) {
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
		/* volatile: one path for the verifier */
		u64 n = redis_most(*(volatile u16 *)&e->size, REDIS_PIECE);
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
		e->first = first;
		e->gap = gap;
		e->state = state;
		e->at_server = s->at_server;
		e->pad = 0;
		e->skipped = skipped;
		if (first) {	/* the others have the first one's */
			redis_address(e->server, s, s->at_server);
			redis_address(e->client, s, !s->at_server);
			redis_who(e, s);
		}
		first = false;	/* not derived from done, whose every value the verifier would track */
		done += *(volatile u16 *)&e->size;
		redis_pieces.ringbuf_submit(e, redis_pieces_flags());
	}
	REDIS_PIECES_END;
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
	if (state == 6 || state >= 12 || protocol != 6)	/* TIME_WAIT and NEW_SYN_RECV are no complete sockets */
		return 0;
	return redis_ends(&s, false) ? redis_segment(&s) : 0;
}
