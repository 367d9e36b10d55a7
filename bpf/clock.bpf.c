/* Who moves a clock, what was asked, and TAI - BOOTTIME around it. Kernel 5.8 (ring buffer); before 6.1 (no bpf_ktime_get_tai_ns) the
 * clocks stay unknown and agent/clock/join.py takes them from the clock watch. Driven by agent/probes/clock.py.
 *
 * Three views of one call, joined in user space:
 *   woke  raw tracepoint sched_waking: clock_was_set() wakes the clock watch's sleepers in the context of whoever stepped the clock
 *   ask   raw tracepoint cap_capable (kernel 6.14), before it the return of that function: every attempt is first checked for
 *         CAP_SYS_TIME, statically linked or not
 *   libc  uprobes on the C library's functions: what they were called with and returned
 * No system call tracepoint: those would tax every call on the host. */

#if defined(__x86_64__)
#define CLOCK_SETTIMEOFDAY 164
#define CLOCK_ADJTIMEX 159
#define CLOCK_SETTIME 227
#define CLOCK_ADJTIME 305
#define CLOCK_ARG1 di
#define CLOCK_ARG2 si
#define CLOCK_NR orig_ax
#define CLOCK_SP sp
#define CLOCK_RET ax
#elif defined(__aarch64__)
#define CLOCK_SETTIMEOFDAY 170
#define CLOCK_ADJTIMEX 171
#define CLOCK_SETTIME 112
#define CLOCK_ADJTIME 266
#define CLOCK_ARG1 regs[0]
#define CLOCK_ARG2 regs[1]
#define CLOCK_NR syscallno
#define CLOCK_SP sp
#define CLOCK_RET regs[0]
#endif
#define CLOCK_LIBC_ADJTIME 0xfffe	/* adjtime(3), which is no system call */
#define CLOCK_STACK_BYTES (4 * PAGE_SIZE)
#define CLOCK_CAP_SYS_TIME 25
/* (cred, ns, capable_ns, cap, ret) of the tracepoint; (cred, ns, cap, opts), ret of the function */
#if TP_cap_capable
#define CLOCK_ASK_CAP 3
#else
#define CLOCK_ASK_CAP 2
#endif
#define CLOCK_TS_COMPAT 2		/* in thread_info.status of x86: within a 32-bit system call */
#define CLOCK_NOISE_NS 300		/* two readings of an offset that did not move differ by less */
#define CLOCK_CALL_NS 1000000000ull	/* none of these calls sleeps: an older entry is one whose return was missed */

enum { CLOCK_WOKE, CLOCK_ASK, CLOCK_LIBC };

struct clock_event {
	u64 t_ns;		/* BOOTTIME of the observation; libc: of the return */
	u64 start_ns;		/* libc: of the entry, else as t_ns */
	s64 tai_boot_before_ns;	/* TAI - BOOTTIME before the change; all ones unknown */
	s64 tai_boot_after_ns;
	u32 before_err_ns;
	u32 after_err_ns;
	struct proc proc;
	s64 asked_s;		/* the time to set, or ADJ_SETOFFSET's step */
	s64 asked_part;		/* its ns, or us (settimeofday, ADJ_SETOFFSET without ADJ_NANO, adjtime) */
	s64 offset;		/* struct timex, as the caller passed it */
	s64 freq;
	s64 constant;
	s64 tick;
	s64 freq_after;		/* libc: as the kernel filled it in */
	s64 tick_after;
	u32 modes;
	u32 status;
	u32 status_after;
	u32 nr;			/* system call number; CLOCK_LIBC_ADJTIME */
	s32 ret;
	u8 source;
	u8 pad[3];
};

/* The last steps, for the watch, which maps them: a notice names the actor without asking the agent. */
struct clock_step {
	u64 seq;		/* written last; from 1 */
	u64 t_ns;
	s64 tai_boot_ns;
	u32 err_ns;
	u32 pid;
	char comm[16];
};

/* struct timex up to what is needed, include/uapi/linux/timex.h (64-bit). */
struct clock_timex {
	u32 modes, pad0;
	s64 offset, freq, maxerror, esterror;
	s32 status, pad1;
	s64 constant, precision, tolerance, sec, part, tick;
};

struct clock_call {
	struct clock_event e;
	u64 timex;		/* user address, read again at the return */
	u64 sp;
	u64 depth;
};

#define ADJ_SETOFFSET_BIT 0x0100
#define ADJ_ADJTIME_BIT 0x8000
#define ADJ_READONLY_BIT 0x2000

BPF_RINGBUF_OUTPUT(clock_events, 64);
BPF_F_TABLE("array", u32, struct clock_step, clock_last, 64, BPF_F_MMAPABLE);
BPF_ARRAY(clock_seen, s64, 2);		/* TAI - BOOTTIME at the last wake, number of steps */
BPF_HASH(clock_calls, u32, struct clock_call, 1024);

static __always_inline void clock_read(s64 *tai_boot, u32 *err)
{
	*tai_boot = UNKNOWN64;
	*err = UNKNOWN32;
#if FUNC_ktime_get_tai_ns
#pragma unroll
	for (int i = 0; i < 3; i++) {
		u64 before = bpf_ktime_get_boot_ns(), tai = bpf_ktime_get_tai_ns(), width = bpf_ktime_get_boot_ns() - before;
		if (width / 2 + 1 < *err) {
			*err = width / 2 + 1;
			*tai_boot = tai - before - width / 2;
		}
	}
#endif
}

/* The registers with which current entered the kernel. */
static __always_inline void *clock_regs(void)
{
#if FUNC_task_pt_regs
	return (void *)bpf_task_pt_regs(bpf_get_current_task_btf());
#else
	void *task = (void *)bpf_get_current_task();
	return (char *)PTR(task, task_struct, stack) + CLOCK_STACK_BYTES - sizeof(struct pt_regs);
#endif
}

#define CLOCK_READ_REG(dst, regs, name) \
	bpf_probe_read_kernel(&(dst), sizeof(dst), (char *)(regs) + __builtin_offsetof(struct pt_regs, name))

static __always_inline bool clock_in_compat(void)
{
	u32 status = 0;
#if HAS_thread_info__status && defined(__x86_64__)
	GET(status, (void *)bpf_get_current_task(), thread_info, status);
#endif
	return status & CLOCK_TS_COMPAT;
}

/* The number of a 32-bit program's call as a 64-bit one's; 0 where it is none of these. same: its structs are a 64-bit program's too. */
static __always_inline u32 clock_compat(u32 nr, bool *same)
{
	*same = nr == 404 || nr == 405;
	switch (nr) {
	case 264:
	case 404:
		return CLOCK_SETTIME;
	case 343:
	case 405:
		return CLOCK_ADJTIME;
	case 25:	/* stime */
	case 79:
		return CLOCK_SETTIMEOFDAY;
	case 124:
		return CLOCK_ADJTIMEX;
	}
	return 0;
}

/* Whether a program runs in an interrupt: on that one's stack, not on the task's. ctx lies on the stack of whoever hit the tracepoint. */
static __always_inline bool clock_in_interrupt(void *ctx)
{
	u64 at = 0;	/* read, since the verifier forbids to calculate with a pointer to the context */
	bpf_probe_read_kernel(&at, sizeof(at), &ctx);
	return at - (u64)PTR((void *)bpf_get_current_task(), task_struct, stack) >= CLOCK_STACK_BYTES;
}

static __always_inline int clock_take_timex(struct clock_event *e, void *from)
{
	struct clock_timex tx = {};
	if (bpf_probe_read_user(&tx, sizeof(tx), from))
		return -14;
	e->modes = tx.modes;
	e->offset = tx.offset;
	e->freq = tx.freq;
	e->status = tx.status;
	e->constant = tx.constant;
	e->tick = tx.tick;
	if (tx.modes & ADJ_SETOFFSET_BIT) {
		e->asked_s = tx.sec;
		e->asked_part = tx.part;
	}
	return 0;
}

static __always_inline int clock_take_time(struct clock_event *e, void *from)
{
	s64 at[2];
	if (!from || bpf_probe_read_user(at, sizeof(at), from))
		return -14;
	e->asked_s = at[0];
	e->asked_part = at[1];
	return 0;
}

/* Fills in who and what; false for a call that changes no clock of ours. */
static __always_inline bool clock_describe(struct clock_event *e, u32 nr, u64 arg1, u64 arg2)
{
	e->nr = nr;
	e->tai_boot_before_ns = e->tai_boot_after_ns = e->asked_s = e->asked_part = UNKNOWN64;
	e->before_err_ns = e->after_err_ns = UNKNOWN32;
	e->freq_after = e->tick_after = UNKNOWN64;
	e->status_after = UNKNOWN32;
	e->t_ns = e->start_ns = bpf_ktime_get_boot_ns();
	fill_proc(&e->proc, (void *)bpf_get_current_task());
	if (nr == CLOCK_SETTIME)
		return !arg1 && clock_take_time(e, (void *)arg2) <= 0;
	if (nr == CLOCK_SETTIMEOFDAY || nr == CLOCK_LIBC_ADJTIME)
		return arg1 && clock_take_time(e, (void *)arg1) <= 0;
	if (nr == CLOCK_ADJTIMEX)
		e->ret = clock_take_timex(e, (void *)arg1);
	else if (nr == CLOCK_ADJTIME && !arg1)
		e->ret = clock_take_timex(e, (void *)arg2);
	else
		return false;
	return e->modes && !((e->modes & ADJ_ADJTIME_BIT) && (e->modes & ADJ_READONLY_BIT));
}

/* As clock_describe, of the call that current is in. */
static __always_inline bool clock_describe_current(struct clock_event *e)
{
	void *regs = clock_regs();
	u64 number = 0, arg1 = 0, arg2 = 0;
	bool same;
	CLOCK_READ_REG(number, regs, CLOCK_NR);
#if defined(__x86_64__)
	if (clock_in_compat()) {
		u32 nr = clock_compat(number, &same);
		CLOCK_READ_REG(arg1, regs, bx);
		CLOCK_READ_REG(arg2, regs, cx);
		bool known = clock_describe(e, same ? nr : 0, (u32)arg1, (u32)arg2);
		e->nr = nr;
		return same ? known : nr;
	}
#endif
	CLOCK_READ_REG(arg1, regs, CLOCK_ARG1);
	CLOCK_READ_REG(arg2, regs, CLOCK_ARG2);
	return clock_describe(e, number, arg1, arg2);
}

static __always_inline void clock_emit(struct clock_event *e)
{
	if (clock_events.ringbuf_output(e, sizeof(*e), QUIET))
		lose(LOST_clock_events);
}

static __always_inline void clock_tell_watch(struct clock_event *e)
{
	u32 which = 1;
	s64 *steps = clock_seen.lookup(&which);
	if (!steps)
		return;
	u64 seq = *steps + 1;	/* by one stepper at a time; a fetching add needs 5.12 (5ca419f2864a) */
	*steps = seq;
	u32 slot = seq & 63;
	struct clock_step *s = clock_last.lookup(&slot);
	if (!s)
		return;
	s->t_ns = e->t_ns;
	s->tai_boot_ns = e->tai_boot_after_ns;
	s->err_ns = e->after_err_ns;
	s->pid = e->proc.pid;
	__builtin_memcpy(s->comm, e->proc.comm, 16);
	s->seq = seq;
}

/* Records are built on the stack: this may run in an interrupt, inside any other program of the family on the same processor. */
int clock_woke(struct bpf_raw_tracepoint_args *ctx)
{
	struct control *control = get_control();
	u32 tgid = 0, zero = 0, flags = 0;
	GET(tgid, (void *)ctx->args[0], task_struct, tgid);
	if (!control || !tgid || tgid != control->watch_tid || bpf_get_current_pid_tgid() >> 32 == tgid)
		return 0;
	if (clock_in_interrupt(ctx))	/* a timer of the watch, which fired while someone stepped a clock */
		return 0;
	s64 *seen = clock_seen.lookup(&zero);
	if (!seen)
		return 0;
	struct clock_event e = {};
	bool known = clock_describe_current(&e);
	GET(flags, (void *)bpf_get_current_task(), task_struct, flags);
	/* A timer of the watch fires in whoever runs then: who steps is still to come. The kernel itself steps in its own threads. */
	if (!known && !(flags & PF_KTHREAD))
		return 0;
	clock_read(&e.tai_boot_after_ns, &e.after_err_ns);
	s64 moved = e.tai_boot_after_ns - *seen;
	bool first = !*seen;
	*seen = e.tai_boot_after_ns;
	/* As above, or a message on its socket, from someone on the way to a step. */
	bool still = first || (moved < CLOCK_NOISE_NS && moved > -CLOCK_NOISE_NS);
	if (still && (!known || (FUNC_ktime_get_tai_ns && !first)))
		return 0;
	e.source = CLOCK_WOKE;
	clock_tell_watch(&e);
	clock_emit(&e);
	return 0;
}

int clock_ask(struct bpf_raw_tracepoint_args *ctx)
{
	if ((u32)ctx->args[CLOCK_ASK_CAP] != CLOCK_CAP_SYS_TIME)
		return 0;
	struct clock_event e = {};
	if (!clock_describe_current(&e))
		return 0;
	clock_read(&e.tai_boot_before_ns, &e.before_err_ns);
	u32 zero = 0;
	s64 *seen = clock_seen.lookup(&zero);
	if (seen)
		*seen = e.tai_boot_before_ns;
	e.source = CLOCK_ASK;
	e.ret = ctx->args[4];
	clock_emit(&e);
	return 0;
}

/* One C library function may call another that is probed too: the outermost return reports, the innermost entry names the call. */
static __always_inline int clock_enter(struct pt_regs *regs, u32 nr, u64 timex)
{
	u32 tid = bpf_get_current_pid_tgid();
	struct clock_call *outer = clock_calls.lookup(&tid);
	if (outer && regs->CLOCK_SP <= outer->sp && bpf_ktime_get_boot_ns() - outer->e.start_ns < CLOCK_CALL_NS) {
		outer->depth++;
		outer->e.nr = nr;
		return 0;
	}
	struct clock_call c = {};
	if (!clock_describe(&c.e, nr, regs->CLOCK_ARG1, regs->CLOCK_ARG2))
		return 0;
	c.e.source = CLOCK_LIBC;
	c.timex = timex;
	c.sp = regs->CLOCK_SP;
	clock_read(&c.e.tai_boot_before_ns, &c.e.before_err_ns);
	if (clock_calls.update(&tid, &c))
		lose(LOST_clock_events);
	return 0;
}

int clock_in_settime(struct pt_regs *regs) { return clock_enter(regs, CLOCK_SETTIME, 0); }
int clock_in_settimeofday(struct pt_regs *regs) { return clock_enter(regs, CLOCK_SETTIMEOFDAY, 0); }
int clock_in_adjtime(struct pt_regs *regs) { return clock_enter(regs, CLOCK_LIBC_ADJTIME, 0); }
int clock_in_adjtimex(struct pt_regs *regs) { return clock_enter(regs, CLOCK_ADJTIMEX, regs->CLOCK_ARG1); }
int clock_in_clock_adjtime(struct pt_regs *regs) { return clock_enter(regs, CLOCK_ADJTIME, regs->CLOCK_ARG2); }

/* errno is out of reach here. A refused caller lacks the capability, a bad pointer could not be read, the rest is EINVAL. */
static __always_inline s32 clock_errno(s32 read_failed)
{
	u64 effective = 0;
	GET(effective, PTR((void *)bpf_get_current_task(), task_struct, cred), cred, cap_effective);
	if (!(effective & 1ull << CLOCK_CAP_SYS_TIME))
		return -1;
	return read_failed ? read_failed : -22;
}

int clock_out(struct pt_regs *regs)
{
	u32 tid = bpf_get_current_pid_tgid();
	struct clock_call *c = clock_calls.lookup(&tid);
	if (!c)
		return 0;
	if (c->depth) {
		c->depth--;
		return 0;
	}
	struct clock_timex tx = {};
	clock_read(&c->e.tai_boot_after_ns, &c->e.after_err_ns);
	c->e.t_ns = bpf_ktime_get_boot_ns();
	c->e.ret = (s32)regs->CLOCK_RET < 0 ? clock_errno(c->e.ret) : 0;
	if (c->timex && !c->e.ret && !bpf_probe_read_user(&tx, sizeof(tx), (void *)c->timex)) {
		c->e.freq_after = tx.freq;
		c->e.tick_after = tx.tick;
		c->e.status_after = tx.status;
	}
	clock_emit(&c->e);
	clock_calls.delete(&tid);
	return 0;
}
