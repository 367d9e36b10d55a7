/* Time in system calls. Kernel 5.8 (ring buffer, boot clock). Driven by agent/probes/syscalls.py.
 *
 * Permanent, here: the time that a thread is switched out inside a call (sched_switch), with run-queue wait (from
 * sched_waking, which runs where the waker does) apart. A system call tracepoint would put every call of every process on the slow path; sched_switch
 * costs nothing to calls that do not block. On demand: sys_enter and sys_exit (bpf/syscalls_timed.bpf.c).
 *
 * To assign blocks to calls: a thread's TIF_NEED_FPU_LOAD is set when it is switched in again and cleared on its return
 * to user mode, so a switch-out with a clear bit is the first since the thread was in user mode: the call before it has
 * ended. The bit's number differs between kernels and is measured at start (control of syscalls_tune, see
 * agent/probes/syscalls.py). The kernel's own use of the FPU within a call sets it too early; changed user registers
 * distinguish most of those calls. */

struct syscalls_call {
	u32 tid;
	u32 start;		/* lower half of the call's start: the agent never takes the thread's next call */
};
/* slow calls that may continue */
BPF_TABLE("hash", struct syscalls_call, struct syscalls_event, syscalls_pending, 2048);
BPF_TABLE("array", u32, struct syscalls_event, syscalls_blank, 1);	/* initial value */

static __always_inline void syscalls_count(void *task, struct syscalls_thread *t, u64 ns, u64 run_queue_ns)
{
	struct syscalls_key k = {.pid = t->tgid, .nr = t->now.nr, .basis = SYSCALLS_BLOCKED, .kind = t->now.kind, .peer_port = t->now.peer_port};
	struct control *c = get_control();
	__builtin_memcpy(k.peer_addr, t->now.peer_addr, 16);
	struct syscalls_value *v = syscalls_element(task, &k, c ? c->slot : 0);
	if (!v)
		return;
	__sync_fetch_and_add(&v->count, 1);
	__sync_fetch_and_add(&v->sum_ns, ns);
	if (run_queue_ns)
		__sync_fetch_and_add(&v->run_queue_ns, run_queue_ns);
	if (ns > v->max_ns)
		v->max_ns = ns;
	__sync_fetch_and_add(&v->hist[log2_bucket(ns)], 1);
}

static __always_inline void syscalls_end(struct syscalls_thread *t, u32 tid)
{
	struct syscalls_call call = {.tid = tid, .start = t->call_ns};
	t->call_ns = 0;
	if (!t->pending)
		return;
	t->pending = 0;
	struct syscalls_event *e = syscalls_pending.lookup(&call);
	if (!e)
		return;
	struct syscalls_event *out = syscalls_events.ringbuf_reserve(sizeof(*out));
	if (out)
		__builtin_memcpy(out, e, sizeof(*out));
	long taken = syscalls_pending.delete(&call);	/* by the agent, first */
	if (!out) {
		if (!taken)
			lose(LOST_syscalls_events);
	} else if (taken) {
		syscalls_events.ringbuf_discard(out, QUIET);
	} else {
		syscalls_events.ringbuf_submit(out, syscalls_events_flags());
	}
}

/* The pending call continues: the agent must leave it. */
static __always_inline void syscalls_hold(struct syscalls_thread *t, u32 tid)
{
	struct syscalls_call call = {.tid = tid, .start = t->call_ns};
	struct syscalls_event *e = syscalls_pending.lookup(&call);
	if (e)
		e->goes_on = 1;
}

/* The element of a call that continues or begins; the agent leaves it until it is done. Not on the stack: it is too
 * large for two of them. */
static __always_inline struct syscalls_event *syscalls_pending_of(struct syscalls_call *call)
{
	u32 zero = 0;
	struct syscalls_event *e = syscalls_pending.lookup(call), *none = syscalls_blank.lookup(&zero);
	if (!e && none) {
		syscalls_pending.insert(call, none);
		e = syscalls_pending.lookup(call);
	}
	if (e)
		*(volatile u64 *)&e->t_ns = 0;
	return e;
}

static __always_inline void syscalls_done(struct syscalls_event *e, u64 now)
{
	e->goes_on = 0;
	asm volatile("" ::: "memory");
	*(volatile u64 *)&e->t_ns = now;
}

static __always_inline void syscalls_remember(struct syscalls_thread *t, void *task, u64 in_ns)
{
	t->last = t->now;
	fill_proc(&t->last_proc, task);
	t->last_from_ns = t->call_ns;
	t->last_to_ns = in_ns;
	t->last_cpu_ns = syscalls_cpu_of(task);
	t->last_reported = t->now.kind == SYSCALLS_SLOW || syscalls_watched.lookup(&t->tgid);
}

/* Reports the last long wait of a thread, unless it is reported. */
static __always_inline void syscalls_recall(struct syscalls_thread *t)
{
	if (t->last_reported)
		return;
	t->last_reported = 1;
	if (over_share(uid_of(current_task()), SHARE_SLOW, SYSCALLS_SLOW_EACH_NS, SYSCALLS_SLOW_MOST)) {
		lose(LOST_syscalls_shares);
		return;
	}
	struct syscalls_event *e = syscalls_events.ringbuf_reserve(sizeof(*e));
	if (!e) {
		lose(LOST_syscalls_events);
		return;
	}
	__builtin_memset(e, 0, sizeof(*e));
	e->proc = t->last_proc;
	syscalls_describe(e, &t->last);
	e->t_ns = t->last_to_ns;
	e->duration_ns = t->last_to_ns - t->last_from_ns;
	e->blocked_ns = e->run_queue_ns = e->holder_start_ns = e->written_bytes = UNKNOWN64;
	e->holder_pid = UNKNOWN32;
	e->basis = SYSCALLS_BLOCKED;
	syscalls_events.ringbuf_submit(e, syscalls_events_flags());
}

/* Whether the last long wait of the thread that ended a wait belongs to it. A wait for work does not: it began before,
 * and the one who waits ended it, by asking. */
static __always_inline bool syscalls_belongs(struct syscalls_thread *by, u64 from_ns, u64 to_ns)
{
	u64 its_from = by->last_from_ns, its_to = by->last_to_ns;
	return its_to > from_ns && its_to <= to_ns && (its_from + SYSCALLS_SLOW_NS > from_ns || 2 * (its_to - from_ns) > to_ns - from_ns);
}

/* Reports what the threads waited for of which each let the next one go on, the last one a watched process. */
static __always_inline void syscalls_recall_all(struct syscalls_thread *by)
{
#pragma clang loop unroll(disable)
	for (int i = 0; i < SYSCALLS_WAKERS; i++) {
		u64 from_ns = by->last_from_ns, to_ns = by->last_to_ns;
		u32 tid = by->last.waker_tid;
		syscalls_recall(by);
		by = syscalls_threads.lookup(&tid);
		if (!by || !syscalls_belongs(by, from_ns, to_ns))
			return;
	}
}

/* `task`, switched out within a call, got its CPU back at `in_ns`. */
static __always_inline void syscalls_back(struct syscalls_thread *t, struct syscalls_tune *tune, void *task, u32 tid, u64 in_ns)
{
	u64 total = in_ns - t->off_ns, run_queue = t->wake_ns > t->off_ns ? in_ns - t->wake_ns : 0;
	t->off_ns = 0;
	t->blocked_ns += total - run_queue;
	t->run_queue_ns += run_queue;
	syscalls_count(task, t, total - run_queue, run_queue);
	if (in_ns - t->call_ns >= SYSCALLS_LONG_NS)
		syscalls_remember(t, task, in_ns);
	if (tune->full && t->now.kind == SYSCALLS_SLOW)
		return;
	if (in_ns - t->call_ns < (t->now.kind == SYSCALLS_WAITING ? SYSCALLS_WAIT_NS : SYSCALLS_SLOW_NS))
		return;
	u64 goroutine = UNKNOWN64;
	bool shared = t->now.kind == SYSCALLS_SLOW;	/* users' programs decide how many there are */
	if (t->now.kind == SYSCALLS_WAITING) {
		bool wanted = false;
#ifdef LIMITER_OPEN
		u64 *open = limiter_open.lookup(&tid);
		if (open && *open == t->goroutine) {
			goroutine = *open;
			wanted = true;
		}
#endif
		u64 *least = syscalls_watched.lookup(&t->tgid);
		if (!wanted && (!least || in_ns - t->call_ns < *least))
			return;
		shared = !wanted && *least;
	}
	if (shared && !t->pending && over_share(uid_of(task), SHARE_SLOW, SYSCALLS_SLOW_EACH_NS, SYSCALLS_SLOW_MOST)) {
		lose(LOST_syscalls_shares);
		return;
	}
	struct syscalls_call call = {.tid = tid, .start = t->call_ns};
	if (t->pending && !syscalls_pending.lookup(&call)) {	/* the agent took it: the rest counts as a new call */
		call.start = t->call_ns = in_ns - total;
		t->blocked_ns = total - run_queue;
		t->run_queue_ns = run_queue;
	}
	struct syscalls_event *e = syscalls_pending_of(&call);
	if (!e) {
		lose(LOST_syscalls_events);
		return;
	}
	syscalls_fill(e, task, t, tid);
	e->duration_ns = in_ns - t->call_ns;
	e->basis = SYSCALLS_BLOCKED;
	e->goroutine = goroutine;
	syscalls_done(e, in_ns);
	t->pending = 1;
}

/* A task's state; 0: it runs, or is ready to. by: how it is read. */
#if HAS_task_struct____state
#define SYSCALLS_STATE(by, dst, task) by(dst, task, task_struct, __state)
#else
#define SYSCALLS_STATE(by, dst, task) by(dst, task, task_struct, state)
#endif

/* The current task leaves the CPU. */
static __always_inline void syscalls_out(bool preempt, u64 now)
{
	void *task = current_task();
	u32 flags = 0, tid = 0, state = 0;
	unsigned long ti = 0;
	struct syscalls_tune *tune = syscalls_get_tune();
	LOAD(flags, task, task_struct, flags);
	syscalls_put_away(task, flags);
	if (!tune || flags & (PF_KTHREAD | PF_IO_WORKER | PF_EXITING))
		return;	/* an exiting thread's element is gone, and a new one would never be deleted */
	LOAD(tid, task, task_struct, pid);
	LOAD(ti, task, thread_info, flags);
	struct syscalls_thread *t = syscalls_threads.lookup(&tid);
	bool first = !(ti & tune->flag_mask);
	if (t) {
		t->ready_ns = 0;
		if (t->off_ns)
			syscalls_back(t, tune, task, tid, syscalls_arrived(t, task, now));
		if (first)
			syscalls_end(t, tid);
		else if (t->pending)
			syscalls_hold(t, tid);
	}
	SYSCALLS_STATE(LOAD, state, task);
	if (preempt || !state) {
		if (t)
			t->ready_ns = now;
		return;
	}
	CALL_REGS(regs, task);
	bool compat = COMPAT_CALL(LOAD, task);
	u32 nr = SYSCALLS_FAULT;
	if (CALL_UNDER_WAY(LOAD_REG(regs, CALL_RETURN)))
		nr = LOAD_REG(regs, CALL_NUMBER) + compat * SYSCALLS_COMPAT;
	else if (!(state & SYSCALLS_UNINTERRUPTIBLE) || !IN_EXCEPTION(LOAD_REG(regs, CALL_NUMBER)))
		return;
	u64 hash = call_hash(regs);
	if (tid == tune->calibrate_tid) {
		if (nr == tune->calibrate_nr && t && t->now.nr == nr)
			tune->flags_again &= ti;
		else if (nr != tune->calibrate_nr)
			tune->flags_first |= ti;
	}
	if (!t)
		t = syscalls_thread_of(tid);
	if (!t)
		return;
	if (t->call_ns && t->call_regs != hash)
		syscalls_end(t, tid);
	u64 wrote = SYSCALLS_WROTE(LOAD, task);
	if (!t->call_ns) {
		t->wrote_before = t->wrote == UNKNOWN64 ? wrote : t->wrote;
		syscalls_classify(t, task, nr, compat ? LOAD_REG(regs, COMPAT_ARG1) : LOAD_REG(regs, CALL_ARG1),
				  compat ? LOAD_REG(regs, COMPAT_ARG2) : LOAD_REG(regs, CALL_ARG2));
		LOAD(t->tgid, task, task_struct, tgid);
		t->task = (u64)task;
		t->call_ns = now;
		t->call_regs = hash;
		t->blocked_ns = t->run_queue_ns = 0;
		t->now.waker_pid = t->now.waker_tid = UNKNOWN32;
		t->now.waker_awake_ns = t->now.waker_cpu_ns = UNKNOWN64;
		t->now.fuse = 0;
	}
#ifdef LIMITER_OPEN
	t->goroutine = LOAD_REG(regs, CALL_GOROUTINE);
#endif
	t->wrote = wrote;
	t->wake_ns = 0;
	t->off_ns = now;
}

/* `task` gets the CPU; it is not current yet. */
static __always_inline void syscalls_in(void *task, u64 now, struct syscalls_ran *ran)
{
	u32 tid = 0;
	GET(tid, task, task_struct, pid);
	if (!tid)
		return;		/* idle */
	struct syscalls_thread *t = syscalls_threads.lookup(&tid);
	struct syscalls_tune *tune = syscalls_get_tune();
	if (t && t->enter_ns)
		syscalls_take_up(t);
	if (!t)
		return;
	syscalls_waited(task, t->off_ns ? t->wake_ns : t->ready_ns, now, ran);
	t->ready_ns = 0;
#ifdef DNS_OPEN
	if (t->off_ns && t->dns_sk)
		dns_waited(task, tid, (void *)t->dns_sk, t->now.peer_addr, t->off_ns, now);
#endif
	if (t->off_ns && tune)
		syscalls_back(t, tune, task, tid, now);
}

int syscalls_on_switch(struct bpf_raw_tracepoint_args *ctx)
{
	u64 now = bpf_ktime_get_boot_ns();
	struct syscalls_ran *ran = syscalls_leaves(current_task(), now);
	syscalls_out(ctx->args[0], now);
	syscalls_in((void *)ctx->args[2], now, ran);
	return 0;
}

/* By the current task, or by an interrupt of it. */
static __always_inline void syscalls_woken(struct syscalls_thread *t, u64 now)
{
	void *task = current_task();
	t->wake_ns = now;
	if (now - t->off_ns < SYSCALLS_SLOW_NS)
		return;
	CALL_REGS(regs, task);
	if (!CALL_UNDER_WAY(LOAD_REG(regs, CALL_RETURN)))
		return;
	u32 nr = LOAD_REG(regs, CALL_NUMBER) + COMPAT_CALL(LOAD, task) * SYSCALLS_COMPAT;
	u64 *class = syscalls_class.lookup(&nr);
	if (class && (*class == SYSCALLS_POLLS || *class == SYSCALLS_IS_IDLE))
		return;
	if (class && (*class == SYSCALLS_WRITES_FD || *class == SYSCALLS_BY_FD))	/* write, or splice */
		t->now.fuse = syscalls_is_fuse(task, LOAD_REG(regs, CALL_ARG1)) || syscalls_is_fuse(task, LOAD_REG(regs, CALL_ARG3));
	u64 waker = bpf_get_current_pid_tgid();
	u32 tid = waker;
	t->now.waker_pid = waker >> 32;
	t->now.waker_tid = tid;
	t->now.waker_awake_ns = t->now.waker_cpu_ns = UNKNOWN64;
	bpf_get_current_comm(t->now.waker_comm, sizeof(t->now.waker_comm));
	struct syscalls_thread *by = syscalls_threads.lookup(&tid);
	bool waited = by && by->last_to_ns;
	u64 since = waited ? by->last_to_ns : syscalls_begun(task);
	if (!since || now < since)
		return;
	t->now.waker_awake_ns = now - since;
	t->now.waker_cpu_ns = syscalls_cpu_of(task) - (waited ? by->last_cpu_ns : 0);
	if (!waited)
		return;
	if (now - t->call_ns < SYSCALLS_LONG_NS || by->last_to_ns <= t->call_ns || !syscalls_watched.lookup(&t->tgid))
		return;
	/* who does not take what is written waits for none */
	if (t->now.kind == SYSCALLS_SLOW || syscalls_belongs(by, t->call_ns, now))
		syscalls_recall_all(by);
}

int syscalls_on_waking(struct bpf_raw_tracepoint_args *ctx)
{
	u32 tid = 0;
	GET(tid, (void *)ctx->args[0], task_struct, pid);
	struct syscalls_thread *t = syscalls_threads.lookup(&tid);
	if (!t)
		return 0;
	if (t->off_ns && !t->wake_ns)
		syscalls_woken(t, bpf_ktime_get_boot_ns());
	else if (!t->off_ns && !t->ready_ns)	/* after a page fault, or anything else that is no call */
		t->ready_ns = bpf_ktime_get_boot_ns();
	return 0;
}

int syscalls_on_exit(struct bpf_raw_tracepoint_args *ctx)
{
	u32 tid = 0;
	void *task = (void *)ctx->args[0];
	GET(tid, task, task_struct, pid);
	struct syscalls_thread *t = syscalls_threads.lookup(&tid);
	struct syscalls_tune *tune = syscalls_get_tune();
	if (!t || !tune)
		return 0;
	if (t->off_ns)
		syscalls_back(t, tune, task, tid, syscalls_arrived(t, task, bpf_ktime_get_boot_ns()));
	syscalls_end(t, tid);
	syscalls_threads.delete(&tid);
	return 0;
}

/* The element of a thread that has waited in a call since before the programs ran. It is made as by syscalls_out, but
 * for what only the thread itself can read: the descriptor that poll waits for. The wait is counted from when the thread
 * last got a CPU, so it is too long by the time that it then ran. If it runs meanwhile, syscalls_back ends the wait, as
 * if no program had seen it. In a PID namespace, the agent does not know the host's numbers of threads. */
static __always_inline struct syscalls_thread *syscalls_older(u32 tid)
{
#if HAS_task_struct__last_arrival && HAS_task_struct__cfs_rq && !defined(PIDNS_INUM)
	void *task = syscalls_task_of(current_task(), tid, SYSCALLS_BY_TID);
	u32 flags = 0, state = 0;
	u64 arrival = 0, clock = 0, now = bpf_ktime_get_boot_ns();
	struct pt_regs regs = {};
	if (!task)
		return 0;
	READ(flags, task, task_struct, flags);
	SYSCALLS_STATE(READ, state, task);
	READ(arrival, task, task_struct, last_arrival);
	GET(clock, PTR(PTR(current_task(), task_struct, cfs_rq), cfs_rq, rq), rq, clock);
	if (flags & (PF_KTHREAD | PF_IO_WORKER | PF_EXITING) || !state || !arrival || clock < arrival)
		return 0;
	bpf_probe_read_kernel(&regs, sizeof(regs), call_regs_of(task));
	if (!CALL_UNDER_WAY(LOAD_REG(&regs, CALL_RETURN)))
		return 0;
	bool compat = COMPAT_CALL(READ, task);
	struct syscalls_thread *t = syscalls_thread_of(tid);
	if (!t || t->call_ns)
		return t;
	syscalls_classify(t, task, LOAD_REG(&regs, CALL_NUMBER) + compat * SYSCALLS_COMPAT,
			  compat ? LOAD_REG(&regs, COMPAT_ARG1) : LOAD_REG(&regs, CALL_ARG1), 0);
	t->call_regs = call_hash(&regs);
	READ(t->tgid, task, task_struct, tgid);
	t->task = (u64)task;
	t->now.waker_pid = t->now.waker_tid = UNKNOWN32;
	t->now.waker_awake_ns = t->now.waker_cpu_ns = UNKNOWN64;
	t->wrote = t->wrote_before = SYSCALLS_WROTE(READ, task);
	t->call_ns = t->off_ns = now - (clock - arrival);
	READ(flags, task, task_struct, flags);
	if (flags & PF_EXITING) {	/* nobody else would delete it */
		syscalls_threads.delete(&tid);
		return 0;
	}
	return t;
#else
	return 0;
#endif
}

/* The result of on_syscalls_so_far. */
BPF_F_TABLE("array", u32, struct syscalls_event, syscalls_so_far, 1, BPF_F_MMAPABLE);

/* Never attached: run for the thread args[0]. Returns whether it has been in one call for args[1] ns; syscalls_so_far is
 * then what is known of that call. Threads of which the address leads to another one have ended. */
int on_syscalls_so_far(struct bpf_raw_tracepoint_args *ctx)
{
	u32 tid = ctx->args[0], zero = 0, its_tid = 0, tgid = 0;
	u64 now = bpf_ktime_get_boot_ns();
	struct syscalls_thread *t = syscalls_threads.lookup(&tid);
	struct syscalls_event *e = syscalls_so_far.lookup(&zero);
	struct syscalls_tune *tune = syscalls_get_tune();
	if (!t)
		t = syscalls_older(tid);
	if (!t || !e || !tune)
		return 0;
	u64 off_ns = t->off_ns, woken_ns = t->wake_ns, begun_ns = t->call_ns;
	if (tune->full && t->now.kind == SYSCALLS_SLOW && t->enter_ns && t->enter_ns < begun_ns)
		begun_ns = t->enter_ns;	/* as its last row will have it */
	if (!off_ns || now < begun_ns + ctx->args[1])
		return 0;
	void *task = (void *)t->task;
	GET(its_tid, task, task_struct, pid);
	GET(tgid, task, task_struct, tgid);
	if (its_tid != tid || tgid != t->tgid)
		return 0;
	u64 ready_ns = woken_ns > off_ns && now > woken_ns ? now - woken_ns : 0;
	syscalls_fill(e, task, t, tid);
	e->t_ns = now;
	e->duration_ns = now - begun_ns;
	e->blocked_ns += now - off_ns - ready_ns;
	e->run_queue_ns += ready_ns;
	e->basis = SYSCALLS_SO_FAR;
	e->waker_pid = e->waker_tid = UNKNOWN32;	/* of an earlier wait in that call */
	e->waker_awake_ns = e->waker_cpu_ns = UNKNOWN64;
	return t->off_ns == off_ns;
}
