/* Where threads of a few processes wait: time off the CPU by kernel and user stack. Attached for seconds only, kernel
 * 5.8. Driven by agent/investigate/. A thread that sleeps during the whole profile is not switched:
 * agent/investigate/asleep.py. For a thread that slept before it, its first wake-up and the waker are kept. */

#define OFFCPU_DEAD 0x80	/* TASK_DEAD, include/linux/sched.h: it will not be back */
enum { OFFCPU_SLEEPING, OFFCPU_UNINTERRUPTIBLE, OFFCPU_READY };	/* in the order of the table's enum */

struct offcpu_key {
	u32 pid;
	s32 kernel_stack;
	s32 user_stack;
	u16 nr;
	u8 state;
	u8 pad;
};

struct offcpu_value {
	u64 count;
	u64 sum_ns;
	u64 max_ns;
	struct proc proc;
};
BPF_TABLE("hash", struct offcpu_key, struct offcpu_value, offcpu_sums, 1024);

struct offcpu_gone {
	u64 off_ns;
	struct offcpu_key key;
};
BPF_TABLE("hash", u32, struct offcpu_gone, offcpu_gone, 2048);	/* threads that are off the CPU: tid */

#define OFFCPU_WAKES 8
struct offcpu_wake {
	u64 from_ns;		/* 0: it slept before the profile */
	u64 t_ns;
	u32 by_pid;		/* of the system call that woke it; 0: an interrupt, or the kernel itself */
	u32 by_tid;
	char by_comm[16];
	u64 nr;
};
struct offcpu_woken {
	u64 count;
	struct offcpu_wake wakes[8];	/* OFFCPU_WAKES, the first ones */
};
BPF_TABLE("hash", u32, struct offcpu_woken, offcpu_woken, 1024);	/* tid */
BPF_TABLE("array", u32, struct offcpu_woken, offcpu_none, 1);	/* never written: too large for the stack */

static __always_inline void offcpu_leaves(struct bpf_raw_tracepoint_args *ctx, struct control *c, u64 now)
{
	void *task = current_task();
	struct offcpu_gone gone = {.off_ns = now};
	u32 tid = 0, state = 0;
	GET(gone.key.pid, task, task_struct, tgid);
	if (!profile_has(c, gone.key.pid))
		return;
	GET(tid, task, task_struct, pid);
#if HAS_task_struct____state
	READ(state, task, task_struct, __state);
#else
	READ(state, task, task_struct, state);
#endif
	if (state & OFFCPU_DEAD)
		return;
	gone.key.nr = profile_call(task);
	gone.key.kernel_stack = gone.key.user_stack = -1;
	if (ctx->args[0] || !state) {
		gone.key.state = OFFCPU_READY;	/* another one has its CPU: its place is irrelevant */
	} else {
		gone.key.state = state & 2 ? OFFCPU_UNINTERRUPTIBLE : OFFCPU_SLEEPING;
		gone.key.kernel_stack = profile_stacks.get_stackid(ctx, 0);
		gone.key.user_stack = profile_stacks.get_stackid(ctx, BPF_F_USER_STACK);
	}
	if (offcpu_gone.update(&tid, &gone))
		lose(LOST_offcpu_gone);
}

static __always_inline void offcpu_returns(void *task, u64 now)
{
	struct offcpu_value none = {};
	u32 tid = 0;
	GET(tid, task, task_struct, pid);
	struct offcpu_gone *gone = offcpu_gone.lookup(&tid);
	if (!gone)
		return;
	u64 ns = now - gone->off_ns;
	struct offcpu_key key = gone->key;
	offcpu_gone.delete(&tid);
	struct offcpu_value *v = offcpu_sums.lookup(&key);
	if (!v) {
		fill_proc(&none.proc, task);
		none.proc.tid = UNKNOWN32;
		offcpu_sums.insert(&key, &none);
		v = offcpu_sums.lookup(&key);
	}
	if (!v) {
		lose(LOST_offcpu_sums);
		return;
	}
	__sync_fetch_and_add(&v->count, 1);
	__sync_fetch_and_add(&v->sum_ns, ns);
	if (ns > v->max_ns)
		v->max_ns = ns;
}

int offcpu_on_switch(struct bpf_raw_tracepoint_args *ctx)
{
	u64 now = bpf_ktime_get_boot_ns();
	struct control *c = profile_control(now);
	if (!c)
		return 0;
	offcpu_returns((void *)ctx->args[2], now);
	offcpu_leaves(ctx, c, now);
	return 0;
}

int offcpu_on_waking(struct bpf_raw_tracepoint_args *ctx)
{
	void *task = (void *)ctx->args[0];
	u64 now = bpf_ktime_get_boot_ns(), by = bpf_get_current_pid_tgid();
	struct control *c = profile_control(now);
	u32 tid = 0, pid = 0, zero = 0;
	if (!c)
		return 0;
	GET(pid, task, task_struct, tgid);
	if (!profile_has(c, pid))
		return 0;
	GET(tid, task, task_struct, pid);
	struct offcpu_gone *gone = offcpu_gone.lookup(&tid);
	struct offcpu_woken *woken = offcpu_woken.lookup(&tid);
	if (!woken) {
		struct offcpu_woken *none = offcpu_none.lookup(&zero);
		if (gone || !none)
			return 0;	/* it has run since the profile began */
		offcpu_woken.insert(&tid, none);
		woken = offcpu_woken.lookup(&tid);
	}
	if (!woken) {
		lose(LOST_offcpu_woken);
		return 0;
	}
	if (woken->count >= OFFCPU_WAKES || (!gone && woken->count))
		return 0;
	struct offcpu_wake *wake = &woken->wakes[woken->count & (OFFCPU_WAKES - 1)];
	wake->from_ns = gone ? gone->off_ns : 0;
	wake->nr = gone ? gone->key.nr : 0;
	wake->t_ns = now;
	if (profile_call(current_task()) == 0xffff) {	/* the interrupted task is not the waker */
		__builtin_memcpy(wake->by_comm, "interrupt", sizeof("interrupt"));
	} else {
		wake->by_pid = by >> 32;
		wake->by_tid = by;
		bpf_get_current_comm(wake->by_comm, sizeof(wake->by_comm));
	}
	woken->count++;
	return 0;
}
