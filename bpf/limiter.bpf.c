/* Decisions of golang.org/x/time/rate in unmodified Go programs: uprobes on (*Limiter).reserveN, where each decision is made, on
 * (*Limiter).wait, which can refuse before it gets there, and on each of their RETs (a uretprobe would break Go's moving stacks).
 * Registers: Go's internal ABI on x86-64, in use since Go 1.17 (cmd/compile/abi-internal.md). Minimum kernel 5.8.
 * Driven by agent/probes/limiter.py. All numbers leave as the program holds them; user space makes sense of floats and times. */

#define LIMITER_OPEN 1
#define LIMITER_SETTLE_NS 1000000000

struct limiter_decision {
	u64 t_ns;		/* end of the decision, CLOCK_BOOTTIME */
	struct proc proc;
	u64 goroutine;
	u64 limiter;		/* its address */
	u64 limit;		/* bits of a double, at entry */
	u64 burst;
	u64 tokens;		/* bits of a double, at exit */
	u64 last_wall;		/* Limiter.last at exit, as time.Time's two words */
	u64 last_ext;
	u64 n;
	u64 now_wall;		/* the program's time */
	u64 now_ext;
	u64 act_wall;		/* timeToAct of the reservation */
	u64 act_ext;
	u64 duration_ns;
	u64 every;		/* 1, or k where only one second in k is watched */
	char library_version[24];
	u8 ok;
	u8 reserved;		/* 0: wait ended before a reservation was tried; act and tokens say nothing */
	u8 asleep;		/* 1: wait now sleeps until act; a record with ``woke`` says how that ends */
	u8 woke;		/* 1: no decision, but the end of such a sleep: ok, or 0 where the caller's context ended it */
	u8 pad[4];
};
BPF_RINGBUF_OUTPUT(limiter_decisions, 1024);

/* A binary's file. device: as the kernel keeps it (MKDEV), or 0 where what stat tells of it may be another (btrfs, some overlays). */
struct limiter_file {
	u64 inode;
	u64 device;
};

/* User space writes all but decisions. */
struct limiter_binary {
	u64 decisions;
	u64 every;		/* 0: not watched now, its probes come or go */
	u64 since_ns;		/* when all its probes were attached: decisions that began before are left out */
	char library_version[24];
};
BPF_F_TABLE("hash", struct limiter_file, struct limiter_binary, limiter_binaries, 1024, 0);

struct limiter_counts {
	u64 orphans;		/* decisions that began and never ended: a panic, or the probes came or went meanwhile */
	u64 unmatched;		/* that ended and were not seen to begin */
};
BPF_F_TABLE("array", u32, struct limiter_counts, limiter_counts, 1, BPF_F_MMAPABLE);

/* A goroutine: it may change threads within a decision. */
struct limiter_key {
	u64 goroutine;
	u32 tgid;
	u32 pad;
};

struct limiter_start {
	u64 t_ns;
	u64 limiter;
	u64 limit;
	u64 burst;
	u64 n;
	u64 now_wall;
	u64 now_ext;
	u32 tid;
	u32 asleep;		/* of wait: it has decided and sleeps */
};
BPF_F_TABLE("lru_hash", struct limiter_key, struct limiter_start, limiter_reserving, 16384, 0);
BPF_F_TABLE("lru_hash", struct limiter_key, struct limiter_start, limiter_waiting, 16384, 0);

/* Thread that began a decision -> its goroutine, while the decision is open, for what else that thread does then. */
BPF_F_TABLE("lru_hash", u32, u64, limiter_open, 16384, 0);

static __always_inline void limiter_key_of(struct pt_regs *ctx, struct limiter_key *key)
{
	key->goroutine = ctx->r14;
	key->tgid = bpf_get_current_pid_tgid() >> 32;
	key->pad = 0;
}

static __always_inline struct limiter_counts *limiter_counter(void)
{
	u32 zero = 0;
	return limiter_counts.lookup(&zero);
}

static __always_inline void limiter_orphan(void)
{
	struct limiter_counts *counts = limiter_counter();
	if (counts)
		__sync_fetch_and_add(&counts->orphans, 1);
}

/* Null where the executable's inode is not the one that user space opened (some stacked file systems): watched all the same. */
static __always_inline struct limiter_binary *limiter_binary_of(void *task)
{
	void *exe = PTR(PTR(task, task_struct, mm), mm_struct, exe_file);
	void *inode = PTR(exe, file, f_inode);
	struct limiter_file file = {};
	struct limiter_binary *found;
	u32 device = 0;
	GET(file.inode, inode, inode, i_ino);
	GET(device, PTR(inode, inode, i_sb), super_block, s_dev);
	file.device = device;
	found = limiter_binaries.lookup(&file);
	if (found)
		return found;
	file.device = 0;
	return limiter_binaries.lookup(&file);
}

/* A lost decision, unless it may have been under way when the probes came. */
static __always_inline void limiter_unmatched(void)
{
	struct limiter_binary *binary = limiter_binary_of((void *)bpf_get_current_task());
	struct limiter_counts *counts = limiter_counter();
	if (counts && binary && binary->every && bpf_ktime_get_boot_ns() - binary->since_ns > LIMITER_SETTLE_NS)
		__sync_fetch_and_add(&counts->unmatched, 1);
}

/* Fills in what both functions have in common. An old start of this goroutine is one whose end was never seen, or this same
 * call again: a prologue that has to grow the stack begins anew. Returns when the decision began. */
static __always_inline void limiter_start_of(struct pt_regs *ctx, struct limiter_start *s, struct limiter_start *old)
{
	u64 head[2];
	s->t_ns = bpf_ktime_get_boot_ns();
	s->tid = bpf_get_current_pid_tgid();
	s->limiter = ctx->ax;
	s->limit = s->burst = UNKNOWN64;
	if (bpf_probe_read_user(head, sizeof(head), (void *)(s->limiter + 8)) == 0) {
		s->limit = head[0];
		s->burst = head[1];
	}
	if (!old || old->asleep)	/* asleep: its probes were away when it woke up */
		return;
	if (old->limiter == s->limiter && old->n == s->n && old->now_wall == s->now_wall && old->now_ext == s->now_ext)
		s->t_ns = old->t_ns;
	else
		limiter_orphan();
}

/* func (lim *Limiter) reserveN(t time.Time, n int, maxFutureReserve time.Duration) Reservation */
int limiter_reserve(struct pt_regs *ctx)
{
	on_own_stack(ctx);
	struct limiter_key key;
	struct limiter_start s = {};
	u32 tid;
	limiter_key_of(ctx, &key);
	s.now_wall = ctx->bx;
	s.now_ext = ctx->cx;
	s.n = ctx->si;
	limiter_start_of(ctx, &s, limiter_reserving.lookup(&key));
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
	s.now_wall = ctx->si;
	s.now_ext = ctx->r8;
	s.n = ctx->di;
	limiter_start_of(ctx, &s, limiter_waiting.lookup(&key));
	limiter_waiting.update(&key, &s);
	tid = s.tid;
	limiter_open.update(&tid, &key.goroutine);
	return 0;
}

static __always_inline void limiter_emit(struct limiter_key *key, struct limiter_start *s, struct limiter_decision *from_regs)
{
	void *task = (void *)bpf_get_current_task();
	struct limiter_binary *binary = limiter_binary_of(task);
	struct limiter_decision *e;
	u64 state[3];
	if (binary) {
		if (!binary->every || s->t_ns < binary->since_ns)
			return;
		if (!from_regs->woke)
			__sync_fetch_and_add(&binary->decisions, 1);
	}
	e = limiter_decisions.ringbuf_reserve(sizeof(*e));
	if (!e) {
		lose(LOST_limiter_decisions);
		return;
	}
	__builtin_memset(e, 0, sizeof(*e));
	e->t_ns = bpf_ktime_get_boot_ns();
	fill_proc(&e->proc, task);
	e->goroutine = key->goroutine;
	e->limiter = s->limiter;
	e->limit = s->limit;
	e->burst = s->burst;
	e->tokens = e->last_wall = e->last_ext = UNKNOWN64;
	if (bpf_probe_read_user(state, sizeof(state), (void *)(s->limiter + 24)) == 0) {
		e->tokens = state[0];
		e->last_wall = state[1];
		e->last_ext = state[2];
	}
	e->n = s->n;
	e->now_wall = s->now_wall;
	e->now_ext = s->now_ext;
	e->act_wall = from_regs->act_wall;
	e->act_ext = from_regs->act_ext;
	e->ok = from_regs->ok;
	e->reserved = from_regs->reserved;
	e->asleep = from_regs->asleep;
	e->woke = from_regs->woke;
	e->duration_ns = e->t_ns - s->t_ns;
	e->every = 1;
	if (binary) {
		e->every = binary->every;
		__builtin_memcpy(e->library_version, binary->library_version, sizeof(e->library_version));
	}
	limiter_decisions.ringbuf_submit(e, QUIET);
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
		limiter_unmatched();
		return 0;
	}
	s = *started;
	limiter_reserving.delete(&key);
	tid = s.tid;
	result.ok = ctx->ax;
	result.act_wall = ctx->di;
	result.act_ext = ctx->si;
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
	limiter_emit(&key, &s, &result);
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
	result.ok = ctx->ax == 0;
	result.woke = s.asleep != 0;
	if (!result.woke)	/* else the thread does something else by now */
		limiter_open.delete(&tid);
	limiter_emit(&key, &s, &result);
	return 0;
}
