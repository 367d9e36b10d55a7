/* Decisions of limiter libraries in unmodified Go programs: the common part of their programs. The programs are
 * generated from the declarations (agent/limiters/libraries/): uprobes at the start of deciding functions, and at each
 * of their RETs (a uretprobe would break Go's moving stacks). Minimum kernel 5.8. Driven by agent/probes/limiter.py.
 *
 * All numbers are sent as in the program; user space converts floats and times. All ones: unknown. */
#pragma once

#define LIMITER_OPEN 1
#define LIMITER_SETTLE_NS 1000000000
#define LIMITER_KEY 64

struct limiter_decision {
	u64 t_ns;		/* end of the decision, CLOCK_BOOTTIME */
	struct proc proc;
	u64 goroutine;
	u64 limiter;		/* its address */
	u64 limit;		/* as configured */
	u64 burst;
	u64 period;
	u64 tokens;		/* what is left, at exit */
	u64 last_wall;		/* the time of tokens, as time.Time's two words */
	u64 last_ext;
	u64 n;			/* requested units */
	u64 granted;
	u64 now_wall;		/* the program's time */
	u64 now_ext;
	u64 act_wall;		/* when the caller is admitted */
	u64 act_ext;
	u64 wait;		/* the delay, or the sleep within the decision */
	u64 error;		/* the first word of an error */
	u64 key_size;		/* bytes, of which key_text holds the first */
	u64 duration_ns;
	u64 stack;		/* the callers (limiter_stack.h), or 0 */
	u32 every;		/* 1, or k for a sampled program: a k-th of the time is observed */
	u32 binary;		/* its number from user space, or 0 */
	char library_version[24];
	char key_text[64];
	u8 ok;
	u8 reserved;		/* 0: wait ended before a reservation; act and tokens are not valid */
	/* 1: wait sleeps until act; a record with ``woke`` follows. 2: the caller must wait, or returns it */
	u8 asleep;
	u8 woke;	/* 1: the end of such a sleep: ok, or 0 if the caller's context ended it. 2: it is returned */
	u8 library;		/* its number */
	u8 pad[3];
};
#define LIMITER_PAGES 1024	/* room for all shares */
/* A user's shares: decisions, and places: those under way (LIMITER_PLACES of each of two maps). Those that never end
 * come back by themselves, since the maps forget the oldest. */
#define LIMITER_EACH_NS 50000
#define LIMITER_MOST 2048
#define LIMITER_PLACES 32768
#define LIMITER_PLACES_EACH_NS 10000000
#define LIMITER_PLACES_MOST 7168
BPF_RINGBUF_OUTPUT(limiter_decisions, LIMITER_PAGES);

static __always_inline u64 limiter_decisions_flags(void)
{
	return wake_each(LOST_limiter_decisions, RING_QUARTER(LIMITER_PAGES, struct limiter_decision));
}

/* A binary's file, and one of its libraries. device: as in the kernel (MKDEV), or 0 if stat may show another one
 * (btrfs, some overlays). */
struct limiter_file {
	u64 inode;
	u32 device;
	u32 library;
};

/* Written by user space, except decisions and hits. */
struct limiter_binary {
	u64 decisions;
	u64 hits;		/* of all its probes, also while it is not observed */
	u32 every;		/* 0: probes are being attached or removed; 1: all decisions; k: sampled */
	u32 number;
	u64 since_ns;		/* when all its probes were attached; decisions that began earlier are left out */
	char library_version[24];
};
BPF_F_TABLE("hash", struct limiter_file, struct limiter_binary, limiter_binaries, 1024, 0);

struct limiter_counts {
	u64 orphans;		/* decisions that never ended: a panic, or probes attached or removed meanwhile */
	u64 unmatched;		/* decisions that ended without a beginning */
	u64 hits;		/* of all binaries */
};
BPF_F_TABLE("array", u32, struct limiter_counts, limiter_counts, 1, BPF_F_MMAPABLE);

/* A goroutine, which may change threads within a decision, and the library: one may be built on another. */
struct limiter_key {
	u64 goroutine;
	u32 tgid;
	u32 library;
};

struct limiter_start {
	u64 t_ns;
	u64 limiter;
	u64 limit;
	u64 burst;
	u64 period;
	u64 n;
	u64 now_wall;
	u64 now_ext;
	u64 key_size;
	u64 slept;		/* ns that a decision sleeps, or 0 */
	u32 tid;
	u32 asleep;		/* of wait: it has decided and sleeps */
	char key_text[LIMITER_KEY];
};

/* Thread that began a decision -> its goroutine, while the decision is open: other families use it. */
BPF_F_TABLE("lru_hash", u32, u64, limiter_open, 16384, 0);

/* What identifies a call of a function: Go's goroutine; elsewhere the thread and its stack pointer, which at a return
 * is as at the first instruction, or 8 more if the program runs after the return; or the thread alone, if the first
 * program is further inside. */
#define LIMITER_GOROUTINE 0
#define LIMITER_STACK 1
#define LIMITER_STACK_POPPED 2
#define LIMITER_THREAD 3

static __always_inline void limiter_key_of(struct pt_regs *ctx, struct limiter_key *key, u32 library, u32 frame)
{
	u64 thread = bpf_get_current_pid_tgid() << 32;
	if (frame == LIMITER_GOROUTINE)
		key->goroutine = go_goroutine(ctx);
	else if (frame == LIMITER_THREAD)
		key->goroutine = thread;
	else
		key->goroutine = thread | (u32)(reg_stack(ctx) - (frame == LIMITER_STACK_POPPED ? RETURN_POPS : 0));
	key->tgid = bpf_get_current_pid_tgid() >> 32;
	key->library = library;
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

/* Null if the executable's inode differs from the one that user space opened (some stacked file systems): observed all
 * the same. */
static __always_inline struct limiter_binary *limiter_binary_of(void *task, u32 library)
{
	void *exe = PTR(PTR(task, task_struct, mm), mm_struct, exe_file);
	void *inode = PTR(exe, file, f_inode);
	struct limiter_file file = {.library = library};
	struct limiter_binary *found;
	GET(file.inode, inode, inode, i_ino);
	GET(file.device, PTR(inode, inode, i_sb), super_block, s_dev);
	found = limiter_binaries.lookup(&file);
	if (found)
		return found;
	file.device = 0;
	found = limiter_binaries.lookup(&file);
	if (found)
		return found;
	file.inode = 0;	/* for a function in shared libraries */
	return limiter_binaries.lookup(&file);
}

/* Counts a hit, for the budget. Null: unknown binary. */
static __always_inline struct limiter_binary *limiter_hit(u32 library)
{
	struct limiter_binary *binary = limiter_binary_of((void *)bpf_get_current_task(), library);
	struct limiter_counts *counts = limiter_counter();
	if (binary)
		__sync_fetch_and_add(&binary->hits, 1);
	if (counts)
		__sync_fetch_and_add(&counts->hits, 1);
	return binary;
}

/* Counts a lost decision, unless it may have begun before the probes were attached. */
static __always_inline void limiter_unmatched(struct limiter_binary *binary)
{
	struct limiter_counts *counts = limiter_counter();
	if (counts && binary && binary->every && bpf_ktime_get_boot_ns() - binary->since_ns > LIMITER_SETTLE_NS)
		__sync_fetch_and_add(&counts->unmatched, 1);
}

/* The places of a decision's words, as agent/limiters/library.py writes them: a register's number, or with
 * LIMITER_MEMORY the word that it points to (LIMITER_ITSELF: at the limiter), plus an offset above bit 8; with
 * LIMITER_AGAIN the word that this one points to, plus an offset above bit 20. */
#define LIMITER_ITSELF 10
#define LIMITER_NOWHERE 15
#define LIMITER_MEMORY 16
#define LIMITER_AGAIN 32
struct limiter_places {
	u32 frame;
	u32 limiter, n, now_wall, now_ext, limit, burst, period, key, key_size;
	u32 ok, error, wait, act_wall, act_ext, granted, tokens, last_wall, last_ext;
};

/* place: a constant, so that this is a single load. */
static __always_inline u64 limiter_base(struct pt_regs *ctx, u64 limiter, u32 place)
{
	return (place & 15) == LIMITER_ITSELF ? limiter : reg_numbered(ctx, place & 15);
}

static __always_inline u64 limiter_word(struct pt_regs *ctx, u64 limiter, u32 place)
{
	u64 base = limiter_base(ctx, limiter, place), word;
	if ((place & 15) == LIMITER_NOWHERE || !(place & LIMITER_MEMORY))
		return base;
	if (bpf_probe_read_user(&word, sizeof(word), (void *)(base + (place >> 8 & 4095))))
		return UNKNOWN64;
	if (!(place & LIMITER_AGAIN))
		return word;
	base = word;
	return bpf_probe_read_user(&word, sizeof(word), (void *)(base + (place >> 20))) ? UNKNOWN64 : word;
}

/* The limiter's remaining tokens, and their time. Adjacent words are read at once, since other goroutines may write
 * them. */
static __always_inline void limiter_rest(struct pt_regs *ctx, struct limiter_decision *e, u64 limiter, struct limiter_places at)
{
	if (at.tokens & LIMITER_MEMORY && !(at.tokens & LIMITER_AGAIN) && at.last_wall == at.tokens + (8 << 8) && at.last_ext == at.tokens + (16 << 8)) {
		if (!bpf_probe_read_user(&e->tokens, 24, (void *)(limiter_base(ctx, limiter, at.tokens) + (at.tokens >> 8 & 4095))))
			return;
		e->tokens = e->last_wall = e->last_ext = UNKNOWN64;
		return;
	}
	e->tokens = limiter_word(ctx, limiter, at.tokens);
	e->last_wall = limiter_word(ctx, limiter, at.last_wall);
	e->last_ext = limiter_word(ctx, limiter, at.last_ext);
}

/* Sets the start of a decision with its arguments filled in. An old start of this goroutine has missed its end, or is
 * the same call: a prologue that grows the stack begins again. */
static __always_inline void limiter_begin(struct limiter_start *s, struct limiter_start *old, u32 frame)
{
	s->t_ns = bpf_ktime_get_boot_ns();
	s->tid = bpf_get_current_pid_tgid();
	if (!old || old->asleep)	/* asleep: it woke up without probes */
		return;
	if (frame == LIMITER_GOROUTINE && old->limiter == s->limiter && old->n == s->n && old->now_wall == s->now_wall && old->now_ext == s->now_ext)
		s->t_ns = old->t_ns;
	else
		limiter_orphan();
}

/* The record of a decision that ends now, or null. The caller fills in the result and submits it. */
static __always_inline struct limiter_decision *limiter_end(struct limiter_key *key, struct limiter_start *s, bool woke, struct limiter_binary *binary)
{
	void *task = (void *)bpf_get_current_task();
	struct limiter_decision *e;
	if (binary) {
		if (!binary->every || s->t_ns < binary->since_ns)
			return 0;
		if (!woke)
			__sync_fetch_and_add(&binary->decisions, 1);
	}
	if (over_share(uid_of(task), SHARE_DECISIONS, LIMITER_EACH_NS, LIMITER_MOST)) {
		lose(LOST_limiter_shares);
		return 0;
	}
	e = limiter_decisions.ringbuf_reserve(sizeof(*e));
	if (!e) {
		lose(LOST_limiter_decisions);
		return 0;
	}
	e->t_ns = bpf_ktime_get_boot_ns();
	fill_proc(&e->proc, task);
	e->goroutine = key->goroutine;
	e->limiter = s->limiter;
	e->limit = s->limit;
	e->burst = s->burst;
	e->period = s->period;
	e->n = s->n;
	e->now_wall = s->now_wall;
	e->now_ext = s->now_ext;
	e->key_size = s->key_size;
	__builtin_memcpy(e->key_text, s->key_text, sizeof(e->key_text));
	e->woke = woke;
	e->library = key->library;
	__builtin_memset(e->pad, 0, sizeof(e->pad));
	e->duration_ns = e->t_ns - s->t_ns;
	e->every = 1;
	e->binary = 0;
	if (binary) {
		e->every = binary->every;
		e->binary = binary->number;
		__builtin_memcpy(e->library_version, binary->library_version, sizeof(e->library_version));
	} else {
		__builtin_memset(e->library_version, 0, sizeof(e->library_version));
	}
	return e;
}
