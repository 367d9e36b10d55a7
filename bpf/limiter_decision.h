/* Decisions of limiter libraries in unmodified Go programs: what all of them share. Each library's programs stand in the file that its declaration names
 * (agent/limiters/libraries/): uprobes where decisions begin, and on each RET of these functions (a uretprobe would break Go's moving stacks).
 * Registers: Go's internal ABI on x86-64, in use since Go 1.17 (cmd/compile/abi-internal.md). Minimum kernel 5.8.
 * Driven by agent/probes/limiter.py, which defines by the declarations, F being a file's name before its first dot:
 *
 * F_LIBRARY     the library's number
 * F_AT_field    offset of a field in the limiter
 * PROGRAM_name  register of an argument at an entry, of a result at a return: its number for limiter_register()
 *
 * All numbers leave as the program holds them; user space makes sense of floats and times. */
#pragma once

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
	u8 library;		/* its number */
	u8 pad[3];
};
BPF_RINGBUF_OUTPUT(limiter_decisions, 1024);

/* A binary's file, and one of the libraries in it. device: as the kernel keeps it (MKDEV), or 0 where what stat tells of it may be another (btrfs, some overlays). */
struct limiter_file {
	u64 inode;
	u32 device;
	u32 library;
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
	return limiter_binaries.lookup(&file);
}

/* A lost decision, unless it may have been under way when the probes came. */
static __always_inline void limiter_unmatched(u32 library)
{
	struct limiter_binary *binary = limiter_binary_of((void *)bpf_get_current_task(), library);
	struct limiter_counts *counts = limiter_counter();
	if (counts && binary && binary->every && bpf_ktime_get_boot_ns() - binary->since_ns > LIMITER_SETTLE_NS)
		__sync_fetch_and_add(&counts->unmatched, 1);
}

/* A word of an argument at a function's entry, of a result at its return. number: a constant, so that this is one load. */
static __always_inline u64 limiter_register(struct pt_regs *ctx, int number)
{
	switch (number) {	/* the order of agent/limiters/library.py */
	case 0: return ctx->ax;
	case 1: return ctx->bx;
	case 2: return ctx->cx;
	case 3: return ctx->di;
	case 4: return ctx->si;
	case 5: return ctx->r8;
	case 6: return ctx->r9;
	case 7: return ctx->r10;
	default: return ctx->r11;
	}
}

/* Says when a decision began whose arguments are filled in. An old start of this goroutine is one whose end was never seen, or this same
 * call again: a prologue that has to grow the stack begins anew. */
static __always_inline void limiter_begin(struct limiter_start *s, struct limiter_start *old)
{
	s->t_ns = bpf_ktime_get_boot_ns();
	s->tid = bpf_get_current_pid_tgid();
	if (!old || old->asleep)	/* asleep: its probes were away when it woke up */
		return;
	if (old->limiter == s->limiter && old->n == s->n && old->now_wall == s->now_wall && old->now_ext == s->now_ext)
		s->t_ns = old->t_ns;
	else
		limiter_orphan();
}

/* The record of a decision that ends now, or null; tokens and last are the library's to fill in, and so is submitting it. */
static __always_inline struct limiter_decision *limiter_end(struct limiter_key *key, struct limiter_start *s, struct limiter_decision *result, u32 library)
{
	void *task = (void *)bpf_get_current_task();
	struct limiter_binary *binary = limiter_binary_of(task, library);
	struct limiter_decision *e;
	if (binary) {
		if (!binary->every || s->t_ns < binary->since_ns)
			return 0;
		if (!result->woke)
			__sync_fetch_and_add(&binary->decisions, 1);
	}
	e = limiter_decisions.ringbuf_reserve(sizeof(*e));
	if (!e) {
		lose(LOST_limiter_decisions);
		return 0;
	}
	__builtin_memset(e, 0, sizeof(*e));
	e->t_ns = bpf_ktime_get_boot_ns();
	fill_proc(&e->proc, task);
	e->goroutine = key->goroutine;
	e->limiter = s->limiter;
	e->limit = s->limit;
	e->burst = s->burst;
	e->tokens = e->last_wall = e->last_ext = UNKNOWN64;
	e->n = s->n;
	e->now_wall = s->now_wall;
	e->now_ext = s->now_ext;
	e->act_wall = result->act_wall;
	e->act_ext = result->act_ext;
	e->ok = result->ok;
	e->reserved = result->reserved;
	e->asleep = result->asleep;
	e->woke = result->woke;
	e->library = library;
	e->duration_ns = e->t_ns - s->t_ns;
	e->every = 1;
	if (binary) {
		e->every = binary->every;
		__builtin_memcpy(e->library_version, binary->library_version, sizeof(e->library_version));
	}
	return e;
}
