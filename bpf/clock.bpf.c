/* Who moves a clock, the request, and TAI - BOOTTIME around it. Kernel 5.8 (ring buffer); before 6.1 (no
 * bpf_ktime_get_tai_ns) the clocks are unknown, and agent/clock/join.py takes them from the clock watch. Driven by
 * agent/probes/clock.py.
 *
 * Three views of one call, joined in user space:
 *
 * woke  raw tracepoint sched_waking: clock_was_set() wakes the clock watch's sleepers in the context of the task that
 *       stepped the clock
 * ask   raw tracepoint cap_capable (kernel 6.14), before it the return of that function: every attempt is first
 *       checked for CAP_SYS_TIME, statically linked or not
 * libc  uprobes on the C library's functions: their arguments and results
 *
 * No system call tracepoint: those would slow down every call on the host. */

/* The last steps, for the watch, which maps them: a notice has the actor without a request to the agent. */
struct clock_step {
	u64 seq;		/* written last; from 1 */
	u64 t_ns;
	s64 tai_boot_ns;
	u32 err_ns;
	u32 pid;
	char comm[16];
};

struct clock_call {
	struct clock_event e;
	u64 timex;		/* user address, read again at the return */
	u64 stack;
	u64 depth;
};

BPF_RINGBUF_OUTPUT(clock_events, 64);
BPF_RINGBUF_OUTPUT(clock_refused, 16);	/* of refused attempts: many of these cannot crowd out permitted calls */
BPF_F_TABLE("array", u32, struct clock_step, clock_last, 64, BPF_F_MMAPABLE);
BPF_ARRAY(clock_seen, s64, 2);		/* TAI - BOOTTIME at the last wake, number of steps */
BPF_TABLE("lru_hash", u32, struct clock_call, clock_calls, 1024);	/* a task killed within a call never returns */

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

/* Whether a program runs in an interrupt: on its stack, not on the task's. ctx is on the stack of the tracepoint's hit.
 */
static __always_inline bool clock_in_interrupt(void *ctx)
{
	u64 at = 0;	/* read, since the verifier forbids arithmetic with a pointer to the context */
	bpf_probe_read_kernel(&at, sizeof(at), &ctx);
	return at - (u64)PTR((void *)bpf_get_current_task(), task_struct, stack) >= TASK_STACK_BYTES;
}

static __always_inline void clock_emit(struct clock_event *e)
{
	if (e->ret == CLOCK_EPERM) {
		if (over_share(uid_of((void *)bpf_get_current_task()), SHARE_CLOCK, CLOCK_EACH_NS, CLOCK_MOST))
			lose(LOST_clock_shares);
		else if (clock_refused.ringbuf_output(e, sizeof(*e), QUIET))
			lose(LOST_clock_refused);
	} else if (clock_events.ringbuf_output(e, sizeof(*e), QUIET)) {
		lose(LOST_clock_events);
	}
}

static __always_inline void clock_tell_watch(struct clock_event *e)
{
	u32 which = 1;
	s64 *steps = clock_seen.lookup(&which);
	if (!steps)
		return;
	u64 seq = *steps + 1;	/* by one stepper at a time; an atomic fetch-and-add needs 5.12 (5ca419f2864a) */
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

/* Records are built on the stack: this may run in an interrupt, inside any other program of the family on the same CPU.
 */
int clock_woke(struct bpf_raw_tracepoint_args *ctx)
{
	struct control *control = get_control();
	u32 tgid = 0, zero = 0, flags = 0;
	GET(tgid, (void *)ctx->args[0], task_struct, tgid);
	if (!control || !tgid || tgid != control->watch_tid || bpf_get_current_pid_tgid() >> 32 == tgid)
		return 0;
	if (clock_in_interrupt(ctx))	/* a timer of the watch, which fired during a step */
		return 0;
	s64 *seen = clock_seen.lookup(&zero);
	if (!seen)
		return 0;
	struct clock_event e = {};
	bool known = clock_describe_current(&e);
	GET(flags, (void *)bpf_get_current_task(), task_struct, flags);
	/* A timer of the watch fires in any task: the stepping one comes later. The kernel itself steps in its own threads. */
	if (!known && !(flags & PF_KTHREAD))
		return 0;
	clock_read(&e.tai_boot_after_ns, &e.after_err_ns);
	s64 moved = e.tai_boot_after_ns - *seen;
	bool first = !*seen;
	*seen = e.tai_boot_after_ns;
	/* As above, or a message on its socket from a task that is about to step. */
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
	e.source = CLOCK_ASK;
	e.ret = ctx->args[4];
	u32 zero = 0;
	s64 *seen = clock_seen.lookup(&zero);
	if (seen && !e.ret)
		*seen = e.tai_boot_before_ns;
	clock_emit(&e);
	return 0;
}

/* One C library function may call another probed one: the outermost return reports, the innermost entry names the call.
 */
static __always_inline int clock_enter(struct pt_regs *regs, u32 nr, u64 timex)
{
	on_own_stack(regs);
	u32 tid = bpf_get_current_pid_tgid();
	struct clock_call *outer = clock_calls.lookup(&tid);
	if (outer && reg_stack(regs) <= outer->stack && bpf_ktime_get_boot_ns() - outer->e.start_ns < CLOCK_CALL_NS) {
		outer->depth++;
		outer->e.nr = nr;
		return 0;
	}
	struct clock_call c = {};
	if (!clock_describe(&c.e, nr, reg_arg1(regs), reg_arg2(regs)))
		return 0;
	c.e.source = CLOCK_LIBC;
	c.timex = timex;
	c.stack = reg_stack(regs);
	clock_read(&c.e.tai_boot_before_ns, &c.e.before_err_ns);
	if (clock_calls.update(&tid, &c))
		lose(LOST_clock_events);
	return 0;
}

int clock_in_settime(struct pt_regs *regs) { return clock_enter(regs, NR_clock_settime, 0); }
int clock_in_settimeofday(struct pt_regs *regs) { return clock_enter(regs, NR_settimeofday, 0); }
int clock_in_adjtime(struct pt_regs *regs) { return clock_enter(regs, CLOCK_LIBC_ADJTIME, 0); }
int clock_in_adjtimex(struct pt_regs *regs) { return clock_enter(regs, NR_adjtimex, reg_arg1(regs)); }
int clock_in_clock_adjtime(struct pt_regs *regs) { return clock_enter(regs, NR_clock_adjtime, reg_arg2(regs)); }

/* Whether the current task may set the host's clock: a user namespace's own root may not. */
static __always_inline bool clock_may(void)
{
	u64 effective = 0;
	u32 level = 0;
	void *cred = PTR((void *)bpf_get_current_task(), task_struct, cred);
	GET(effective, cred, cred, cap_effective);
	READ(level, PTR(cred, cred, user_ns), user_namespace, level);
	return effective & 1ull << CLOCK_CAP_SYS_TIME && !level;
}

int clock_out(struct pt_regs *regs)
{
	on_own_stack(regs);
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
	/* errno cannot be read here: a bad pointer is known, all other errors are EINVAL. Without the privilege the call has
	 * failed, whatever the program's own copy of the library returns. */
	c->e.ret = !clock_may() ? CLOCK_EPERM : (s32)reg_return(regs) >= 0 ? 0 : c->e.ret ? c->e.ret : -22;
	if (c->timex && !c->e.ret && !bpf_probe_read_user(&tx, sizeof(tx), (void *)c->timex)) {
		c->e.freq_after = tx.freq;
		c->e.tick_after = tx.tick;
		c->e.status_after = tx.status;
	}
	clock_emit(&c->e);
	clock_calls.delete(&tid);
	return 0;
}
