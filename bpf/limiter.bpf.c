/* golang.org/x/time/rate: (*Limiter).reserveN, where each decision is made, and (*Limiter).wait, which can refuse before it gets there.
 * Declared in agent/limiters/libraries/x_time_rate.py. */

BPF_F_TABLE("lru_hash", struct limiter_key, struct limiter_start, limiter_reserving, 16384, 0);
BPF_F_TABLE("lru_hash", struct limiter_key, struct limiter_start, limiter_waiting, 16384, 0);

/* Words from one field to another. */
#define LIMITER_SPAN(from, to) ((LIMITER_AT_##to - LIMITER_AT_##from) / 8 + 1)
_Static_assert(LIMITER_AT_LIMIT < LIMITER_AT_BURST && LIMITER_AT_TOKENS < LIMITER_AT_LAST_WALL && LIMITER_AT_LAST_WALL < LIMITER_AT_LAST_EXT,
	       "limit and burst, and tokens and last, are each read at once, in this order");

static __always_inline void limiter_configured(struct limiter_start *s)
{
	u64 head[LIMITER_SPAN(LIMIT, BURST)];
	s->limit = s->burst = UNKNOWN64;
	if (bpf_probe_read_user(head, sizeof(head), (void *)(s->limiter + LIMITER_AT_LIMIT)) == 0) {
		s->limit = head[0];
		s->burst = head[LIMITER_SPAN(LIMIT, BURST) - 1];
	}
}

static __always_inline void limiter_tell(struct limiter_key *key, struct limiter_start *s, struct limiter_decision *result)
{
	u64 state[LIMITER_SPAN(TOKENS, LAST_EXT)];
	struct limiter_decision *e = limiter_end(key, s, result, LIMITER_LIBRARY);
	if (!e)
		return;
	if (bpf_probe_read_user(state, sizeof(state), (void *)(s->limiter + LIMITER_AT_TOKENS)) == 0) {
		e->tokens = state[0];
		e->last_wall = state[LIMITER_SPAN(TOKENS, LAST_WALL) - 1];
		e->last_ext = state[LIMITER_SPAN(TOKENS, LAST_EXT) - 1];
	}
	limiter_decisions.ringbuf_submit(e, QUIET);
}

/* func (lim *Limiter) reserveN(t time.Time, n int, maxFutureReserve time.Duration) Reservation */
int limiter_reserve(struct pt_regs *ctx)
{
	on_own_stack(ctx);
	struct limiter_key key;
	struct limiter_start s = {};
	u32 tid;
	limiter_key_of(ctx, &key);
	s.limiter = limiter_register(ctx, LIMITER_RESERVE_LIMITER);
	s.now_wall = limiter_register(ctx, LIMITER_RESERVE_NOW_WALL);
	s.now_ext = limiter_register(ctx, LIMITER_RESERVE_NOW_EXT);
	s.n = limiter_register(ctx, LIMITER_RESERVE_N);
	limiter_begin(&s, limiter_reserving.lookup(&key));
	limiter_configured(&s);
	limiter_reserving.update(&key, &s);
	tid = s.tid;
	limiter_open.update(&tid, &key.goroutine);
	return 0;
}

/* func (lim *Limiter) wait(ctx context.Context, n int, t time.Time, newTimer func(...)) error */
int limiter_wait(struct pt_regs *ctx)
{
	on_own_stack(ctx);
	struct limiter_key key;
	struct limiter_start s = {};
	u32 tid;
	limiter_key_of(ctx, &key);
	s.limiter = limiter_register(ctx, LIMITER_WAIT_LIMITER);
	s.now_wall = limiter_register(ctx, LIMITER_WAIT_NOW_WALL);
	s.now_ext = limiter_register(ctx, LIMITER_WAIT_NOW_EXT);
	s.n = limiter_register(ctx, LIMITER_WAIT_N);
	limiter_begin(&s, limiter_waiting.lookup(&key));
	limiter_configured(&s);
	limiter_waiting.update(&key, &s);
	tid = s.tid;
	limiter_open.update(&tid, &key.goroutine);
	return 0;
}

/* A RET of reserveN. Within wait, the decision began when wait did; where it is to wait, its entry stays until it wakes up. */
int limiter_reserved(struct pt_regs *ctx)
{
	on_own_stack(ctx);
	struct limiter_key key;
	struct limiter_start s, *started, *waiting;
	struct limiter_decision result = {};
	u32 tid;
	limiter_key_of(ctx, &key);
	started = limiter_reserving.lookup(&key);
	if (!started) {
		limiter_unmatched(LIMITER_LIBRARY);
		return 0;
	}
	s = *started;
	limiter_reserving.delete(&key);
	tid = s.tid;
	result.ok = limiter_register(ctx, LIMITER_RESERVED_OK);
	result.act_wall = limiter_register(ctx, LIMITER_RESERVED_ACT_WALL);
	result.act_ext = limiter_register(ctx, LIMITER_RESERVED_ACT_EXT);
	result.reserved = 1;
	waiting = limiter_waiting.lookup(&key);
	if (waiting && !waiting->asleep) {
		s.t_ns = waiting->t_ns;
		limiter_open.delete(&tid);
		tid = waiting->tid;
		result.asleep = result.ok && (result.act_wall != s.now_wall || result.act_ext != s.now_ext);
		if (result.asleep)
			waiting->asleep = 1;
		else
			limiter_waiting.delete(&key);
	}
	limiter_open.delete(&tid);
	limiter_tell(&key, &s, &result);
	return 0;
}

/* A RET of wait: the end of its sleep, or a decision where no reservation was tried. */
int limiter_waited(struct pt_regs *ctx)
{
	on_own_stack(ctx);
	struct limiter_key key;
	struct limiter_start s, *started;
	struct limiter_decision result = {};
	u32 tid;
	limiter_key_of(ctx, &key);
	started = limiter_waiting.lookup(&key);
	if (!started)
		return 0;
	s = *started;
	limiter_waiting.delete(&key);
	tid = s.tid;
	result.ok = limiter_register(ctx, LIMITER_WAITED_ERROR) == 0;
	result.woke = s.asleep != 0;
	if (!result.woke)	/* else the thread does something else by now */
		limiter_open.delete(&tid);
	limiter_tell(&key, &s, &result);
	return 0;
}
