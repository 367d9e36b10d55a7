/* The programs of agent/limiters/library.py: where a decision begins and ends, where a call waits (it may decide before
 * it makes the decision, and sleeps after it), and where a decision sleeps. */

BPF_F_TABLE("lru_hash", struct limiter_key, struct limiter_start, limiter_deciding, LIMITER_PLACES, 0);
BPF_F_TABLE("lru_hash", struct limiter_key, struct limiter_start, limiter_waiting, LIMITER_PLACES, 0);

static __always_inline bool limiter_room(u32 of)
{
	if (!no_place(uid_of((void *)bpf_get_current_task()), of, LIMITER_PLACES_EACH_NS, LIMITER_PLACES_MOST))
		return true;
	lose(LOST_limiter_shares);
	return false;
}

static __always_inline void limiter_forget_decision(struct limiter_key *key)
{
	if (!limiter_deciding.delete(key))
		give_share_back(uid_of((void *)bpf_get_current_task()), SHARE_DECIDING, LIMITER_PLACES_EACH_NS);
}

static __always_inline void limiter_forget_wait(struct limiter_key *key)
{
	if (!limiter_waiting.delete(key))
		give_share_back(uid_of((void *)bpf_get_current_task()), SHARE_WAITING, LIMITER_PLACES_EACH_NS);
}

/* Keys are read now: by the end the garbage collector may have freed their memory. */
static __always_inline void limiter_entered(struct pt_regs *ctx, struct limiter_start *s, struct limiter_places at)
{
	s->limiter = limiter_word(ctx, 0, at.limiter);
	s->n = limiter_word(ctx, s->limiter, at.n);
	s->now_wall = limiter_word(ctx, s->limiter, at.now_wall);
	s->now_ext = limiter_word(ctx, s->limiter, at.now_ext);
	s->limit = limiter_word(ctx, s->limiter, at.limit);
	s->burst = limiter_word(ctx, s->limiter, at.burst);
	s->period = limiter_word(ctx, s->limiter, at.period);
	s->key_size = limiter_word(ctx, s->limiter, at.key_size);
	if (at.key != LIMITER_NOWHERE && at.key_size == LIMITER_NOWHERE) {	/* C's: ends with a zero */
		long bytes = bpf_probe_read_user_str(s->key_text, LIMITER_KEY, (void *)limiter_word(ctx, s->limiter, at.key));
		s->key_size = bytes > 0 ? bytes - 1 : UNKNOWN64;
	} else if (at.key != LIMITER_NOWHERE) {
		u64 text = limiter_word(ctx, s->limiter, at.key), size = s->key_size;
		if (size > LIMITER_KEY - 1)
			size = LIMITER_KEY - 1;
		asm volatile("" : "+r"(size));	/* bounds the next line for the verifier */
		size &= LIMITER_KEY - 1;
		if (bpf_probe_read_user(s->key_text, size, (void *)text))
			s->key_size = UNKNOWN64;
	}
}

static __always_inline int limiter_begins(struct pt_regs *ctx, u32 library, struct limiter_places at)
{
	struct limiter_key key;
	struct limiter_start s = {}, *old;
	u64 goroutine;
	struct limiter_binary *binary = limiter_hit(library);
	u32 tid;
	if (binary && !binary->every)
		return 0;
	limiter_key_of(ctx, &key, library, at.frame);
	limiter_entered(ctx, &s, at);
	old = limiter_deciding.lookup(&key);
	if (!old && !limiter_room(SHARE_DECIDING))
		return 0;
	limiter_begin(&s, old, at.frame);
	limiter_deciding.update(&key, &s);
	tid = s.tid;
	goroutine = at.frame == LIMITER_GOROUTINE ? key.goroutine : UNKNOWN64;
	limiter_open.update(&tid, &goroutine);
	return 0;
}

static __always_inline int limiter_waits(struct pt_regs *ctx, u32 library, struct limiter_places at)
{
	struct limiter_key key;
	struct limiter_start s = {}, *old;
	struct limiter_binary *binary = limiter_hit(library);
	u32 tid;
	if (binary && !binary->every)
		return 0;
	limiter_key_of(ctx, &key, library, at.frame);
	limiter_entered(ctx, &s, at);
	old = limiter_waiting.lookup(&key);
	if (!old && !limiter_room(SHARE_WAITING))
		return 0;
	limiter_begin(&s, old, at.frame);
	limiter_waiting.update(&key, &s);
	tid = s.tid;
	limiter_open.update(&tid, &key.goroutine);
	return 0;
}

/* The thread runs something else meanwhile. */
static __always_inline int limiter_sleeps(struct pt_regs *ctx, u32 library, struct limiter_places at)
{
	struct limiter_key key;
	struct limiter_start *started;
	u64 wait = limiter_word(ctx, 0, at.wait);
	u32 tid;
	limiter_hit(library);
	limiter_key_of(ctx, &key, library, at.frame);
	started = limiter_deciding.lookup(&key);
	if (!started || (s64)wait <= 0)
		return 0;
	started->slept = wait;
	tid = started->tid;
	limiter_open.delete(&tid);
	return 0;
}

/* The record of a decision that was just made. Within a waiting call, it began with that call; if it must wait, that
 * call's entry stays until it wakes up. */
static __always_inline int limiter_concludes(struct pt_regs *ctx, struct limiter_key *key, struct limiter_start *s, struct limiter_binary *binary, struct limiter_places at)
{
	struct limiter_start *waiting;
	struct limiter_decision *e;
	u64 wait, act_wall, act_ext;
	bool asleep = false;
	u8 ok;
	u32 tid = s->tid;
	ok = at.ok == LIMITER_NOWHERE ? 1 : limiter_word(ctx, s->limiter, at.ok);
	wait = s->slept ? s->slept : limiter_word(ctx, s->limiter, at.wait);
	act_wall = limiter_word(ctx, s->limiter, at.act_wall);
	act_ext = limiter_word(ctx, s->limiter, at.act_ext);
	waiting = limiter_waiting.lookup(key);
	if (waiting && !waiting->asleep) {
		s->t_ns = waiting->t_ns;
		limiter_open.delete(&tid);
		tid = waiting->tid;
		asleep = ok && (at.wait == LIMITER_NOWHERE ? act_wall != s->now_wall || act_ext != s->now_ext : (s64)wait > 0);
		if (asleep)
			waiting->asleep = 1;
		else
			limiter_forget_wait(key);
	}
	limiter_open.delete(&tid);
	e = limiter_end(key, s, false, binary);
	if (!e)
		return 0;
	e->stack = at.frame == LIMITER_GOROUTINE ? limiter_stack_of(ctx, key->library) : 0;
	if (at.frame != LIMITER_GOROUTINE)
		e->goroutine = UNKNOWN64;
	e->ok = ok;
	e->reserved = 1;
	e->wait = wait;
	e->act_wall = act_wall;
	e->act_ext = act_ext;
	e->error = limiter_word(ctx, s->limiter, at.error);
	e->granted = limiter_word(ctx, s->limiter, at.granted);
	limiter_rest(ctx, e, s->limiter, at);
	if (at.limit != LIMITER_NOWHERE)
		e->limit = limiter_word(ctx, s->limiter, at.limit);
	if (at.burst != LIMITER_NOWHERE)
		e->burst = limiter_word(ctx, s->limiter, at.burst);
	if (at.period != LIMITER_NOWHERE)
		e->period = limiter_word(ctx, s->limiter, at.period);
	e->asleep = asleep;
	if (!asleep && ok && at.act_wall != LIMITER_NOWHERE && (act_wall != s->now_wall || act_ext != s->now_ext))
		e->asleep = 2;
	limiter_decisions.ringbuf_submit(e, limiter_decisions_flags());
	return 0;
}

/* A reservation that the caller returns. A waiting call returns it itself, and is reported elsewhere. */
static __always_inline int limiter_cancels(struct pt_regs *ctx, u32 library, struct limiter_places at)
{
	struct limiter_key key;
	struct limiter_start s = {};
	struct limiter_decision *e;
	struct limiter_binary *binary = limiter_hit(library);
	limiter_key_of(ctx, &key, library, at.frame);
	if (limiter_waiting.lookup(&key))
		return 0;
	s.limiter = limiter_word(ctx, 0, at.limiter);
	s.n = limiter_word(ctx, s.limiter, at.n);
	s.t_ns = bpf_ktime_get_boot_ns();
	e = limiter_end(&key, &s, true, binary);
	if (!e)
		return 0;
	e->woke = 2;
	e->ok = e->reserved = e->asleep = 0;
	e->stack = 0;
	e->wait = e->error = e->granted = e->act_wall = e->act_ext = e->tokens = e->last_wall = e->last_ext = UNKNOWN64;
	limiter_decisions.ringbuf_submit(e, limiter_decisions_flags());
	return 0;
}

/* A RET of a decision. */
static __always_inline int limiter_ends(struct pt_regs *ctx, u32 library, struct limiter_places at)
{
	struct limiter_key key;
	struct limiter_start s, *started;
	struct limiter_binary *binary = limiter_hit(library);
	limiter_key_of(ctx, &key, library, at.frame);
	started = limiter_deciding.lookup(&key);
	if (!started) {
		/* one that cannot refuse may have slept since before the probes */
		if (at.ok != LIMITER_NOWHERE || at.granted != LIMITER_NOWHERE)
			limiter_unmatched(binary);
		return 0;
	}
	s = *started;
	limiter_forget_decision(&key);
	return limiter_concludes(ctx, &key, &s, binary, at);
}

/* A RET of a waiting call: the end of its sleep, or a decision if none was made within. */
static __always_inline int limiter_woke(struct pt_regs *ctx, u32 library, struct limiter_places at)
{
	struct limiter_key key;
	struct limiter_start s, *started;
	struct limiter_decision *e;
	struct limiter_binary *binary = limiter_hit(library);
	u32 tid;
	limiter_key_of(ctx, &key, library, at.frame);
	started = limiter_waiting.lookup(&key);
	if (!started)
		return 0;
	s = *started;
	limiter_forget_wait(&key);
	tid = s.tid;
	if (!s.asleep)	/* else the thread runs something else by now */
		limiter_open.delete(&tid);
	e = limiter_end(&key, &s, s.asleep != 0, binary);
	if (!e)
		return 0;
	e->stack = limiter_stack_of(ctx, library);
	e->ok = at.error == LIMITER_NOWHERE || limiter_word(ctx, s.limiter, at.error) == 0;
	e->reserved = 0;
	e->asleep = 0;
	e->wait = e->error = e->granted = e->act_wall = e->act_ext = UNKNOWN64;
	limiter_rest(ctx, e, s.limiter, at);
	limiter_decisions.ringbuf_submit(e, limiter_decisions_flags());
	return 0;
}
