/* Redis connections whose bytes are seen in order, as a program reads or writes them: Unix sockets. There are no
 * sequence numbers, so bytes are counted (redis_flow.asked and answered). Otherwise the rules for segments apply
 * (bpf/redis.bpf.c). */

struct redis_stream {
	u64 flow;
	u64 now;
	const char *from;	/* the data ... */
	void *packet;		/* ... or its struct redis_dynptr */
	u32 size;
	u32 readable;		/* readable bytes of it */
	u32 uid;		/* the user whose share it uses */
	u8 reply;
	u8 at_server;
};

enum { REDIS_KERNEL, REDIS_PACKET };	/* where: a separate argument, since it must be a constant */

static __always_inline long redis_copy(u32 where, struct redis_stream *s, u32 at, void *to, u64 size)
{
#if KFUNC_bpf_dynptr_from_skb && KFUNC_bpf_path_d_path && FUNC_dynptr_read
	if (where == REDIS_PACKET)
		return redis_dynptr_read(to, size, s->packet, at, 0);
#endif
	return bpf_probe_read_kernel(to, size, s->from + at);
}

static __always_inline bool redis_stream_wanted(struct redis_flow *f, struct redis_switch *w, struct redis_stream *s, bool begins, u32 what, bool sampled,
						bool *gap)
{
	bool overlap = !s->reply && begins && f->pending, keep;
	f->pending = !s->reply;
	if (f->state == REDIS_IGNORED) {
		if (s->now < f->until_ns)
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
		keep = !over_share(s->uid, SHARE_REDIS, w->each_ns, w->most);
		if (keep)
			__sync_fetch_and_add(&w->sent, 1);
		else
			f->skipped++;
	}
	*gap = f->left_out;
	f->left_out = !keep;
	return keep;
}

/* The data of redis_streamed about a part to send. */
struct redis_part {
	u64 idle;
	u32 seq;
	u32 ack;
	u32 state;
	u32 skipped;
	bool gap;
};

/* Whether to send this part; fills in `part`. */
static __always_inline struct redis_flow *redis_stream_part(u32 where, struct redis_switch *w, struct redis_stream *s, struct redis_part *part)
{
	u8 head[REDIS_HEAD] __attribute__((aligned(8))) = {};
	u32 what = REDIS_NOTHING;
	bool begins = false, sampled = false;
	struct redis_flow *f = redis_flows.lookup(&s->flow);
	if (!s->reply) {
		u64 n = redis_most(s->readable, REDIS_HEAD);
		if (redis_copy(where, s, 0, head, n))
			return 0;
		begins = head[0] == '*';
		what = redis_command_kind(head, w);
		if (what == REDIS_WINDOW && head[5] == '3' && head[6] == '\r' && s->size > REDIS_PIECE)
			what = REDIS_NOTHING;	/* so long a SET creates no counter */
		if (begins && !what && w->samples && (!f || s->now - f->sampled_ns > REDIS_SAMPLE_NS)) {
			w->samples--;
			sampled = true;
		}
	}
	if (!f) {
		struct redis_flow made = {};
		if (!(what || sampled))
			return 0;
		made.left_out = 1;
		/* random: an exchange seen at both ends has the same position */
		made.asked = bpf_get_prandom_u32();
		made.answered = bpf_get_prandom_u32();
		redis_flows.update(&s->flow, &made);
		f = redis_flows.lookup(&s->flow);
		if (!f)
			return 0;
	}
	if (sampled)
		f->sampled_ns = s->now;
	if (what)
		f->limits = 1;
	part->idle = f->seen_ns ? s->now - f->seen_ns : UNKNOWN64;
	f->seen_ns = s->now;
	part->gap = false;
	part->seq = s->reply ? f->answered : f->asked;
	part->ack = s->reply ? f->asked : f->answered;
	if (s->reply)
		f->answered += s->size;
	else
		f->asked += s->size;
	if (!redis_stream_wanted(f, w, s, begins, what, sampled, &part->gap))
		return 0;
	part->state = f->state;
	part->skipped = f->skipped;
	if (begins)
		f->skipped = 0;
	return f;
}

/* The next piece of a part from `done` on, without its owner; 0 at the end, or without room. */
static __always_inline struct redis_piece *redis_stream_piece(u32 where, struct redis_switch *w, struct redis_stream *s, struct redis_part *part, struct redis_flow *f,
							      u32 done, bool first)
{
	if (done >= s->size)
		return 0;
	if (done >= s->readable || over_share(s->uid, SHARE_REDIS_PIECES, 4 * w->piece_ns, w->most_pieces)) {
		f->left_out = done < s->readable;
		__sync_fetch_and_add(&w->cut, 1);
		return 0;
	}
	struct redis_piece *e = redis_pieces.ringbuf_reserve(sizeof(*e));
	if (!e) {
		f->left_out = 1;
		lose(LOST_redis_pieces);
		return 0;
	}
	e->size = redis_most(s->readable - done, REDIS_PIECE);
	u64 n = redis_most(*(volatile u16 *)&e->size, REDIS_PIECE);	/* volatile: one path for the verifier */
	if (redis_copy(where, s, done, e->data, n)) {
		redis_pieces.ringbuf_discard(e, QUIET);
		f->left_out = 1;
		return 0;
	}
	e->t_ns = s->now;
	e->flow = s->flow;
	e->idle_ns = part->idle;
	e->seq = part->seq + done;
	e->ack = part->ack;
	e->end = part->seq + s->size;
	e->netns = 0;
	e->server_port = e->client_port = 0;
	e->reply = s->reply;
	e->first = first;
	e->gap = part->gap;
	e->state = part->state;
	e->at_server = s->at_server;
	e->pad = 0;
	e->skipped = part->skipped;
	return e;
}
