/* How long threads are ready to run while another runs, and which one. Called by sched_switch and sched_waking of
 * bpf/syscalls.bpf.c.
 *
 * A preempted thread is ready from then on, without a wake-up. The thread that ran instead is the last one that ran for
 * a millisecond or more on the waiting thread's CPU, if that was during the wait; else the one that runs there until
 * its end. Otherwise, of several threads that wait for a long runner, each would be attributed to the one before it. */

#ifndef SYSCALLS_CPU_WAIT_NS
#define SYSCALLS_CPU_WAIT_NS 1000000	/* waits from here on are summed up */
#endif
#ifndef SYSCALLS_CPU_DELAY_NS
#define SYSCALLS_CPU_DELAY_NS 4000000	/* and reported one by one, for watched processes */
#endif
#define SYSCALLS_LONG_RUN_NS 1000000
#define SYSCALLS_CPU_EACH_NS 4000000	/* of pairs with a user's waiting processes */
#define SYSCALLS_CPU_MOST 256

struct syscalls_cpu_key {
	u32 pid;
	u32 by_pid;
};

struct syscalls_cpu_value {
	u64 count;
	u64 wait_ns;
	u64 max_ns;
	struct proc proc;
	struct proc by;
	u32 uid;
	u32 pad;
};
BPF_TABLE("hash", struct syscalls_cpu_key, struct syscalls_cpu_value, syscalls_cpu_a, 2048);
BPF_TABLE("hash", struct syscalls_cpu_key, struct syscalls_cpu_value, syscalls_cpu_b, 2048);
BPF_TABLE("array", u32, struct syscalls_cpu_value, syscalls_cpu_zero, 1);

struct syscalls_cpu_event {
	u64 t_ns;		/* it got its processor */
	u64 wait_ns;
	struct proc proc;
	struct proc by;
};
BPF_RINGBUF_OUTPUT(syscalls_cpu_events, 16);

/* Of a CPU: since when its current thread runs, and the last long runner. Two cache lines, since each CPU writes its
 * own at every switch. */
struct syscalls_ran {
	u64 since_ns;
	u64 from_ns;
	u64 to_ns;
	struct proc proc;
	u64 pad[8];
};
BPF_TABLE("array", u32, struct syscalls_ran, syscalls_ran, SYSCALLS_CPUS);

/* `task`, the current one, leaves this CPU. */
static __always_inline struct syscalls_ran *syscalls_leaves(void *task, u64 now)
{
	u32 cpu = bpf_get_smp_processor_id(), tid = 0;
	struct syscalls_ran *r = syscalls_ran.lookup(&cpu);
	if (!r)
		return 0;
	u64 from = r->since_ns;
	r->since_ns = now;
	if (!from || now - from < SYSCALLS_LONG_RUN_NS)
		return r;
	LOAD(tid, task, task_struct, pid);
	if (!tid)
		return r;	/* idle */
	r->from_ns = from;
	r->to_ns = now;
	fill_proc(&r->proc, task);
	return r;
}

/* `task` was ready since `since`, and gets this CPU now. */
static __always_inline void syscalls_waited(void *task, u64 since, u64 now, struct syscalls_ran *r)
{
	u32 zero = 0;
	struct syscalls_cpu_key k = {};
	struct control *c = get_control();
	if (!since || now < since + SYSCALLS_CPU_WAIT_NS || !r || !c)
		return;
	void *before = current_task();
	bool long_run = r->to_ns > since;
	GET(k.pid, task, task_struct, tgid);
	if (long_run)
		k.by_pid = r->proc.pid;
	else
		GET(k.by_pid, before, task_struct, tgid);
	struct syscalls_cpu_value *v = c->slot ? syscalls_cpu_b.lookup(&k) : syscalls_cpu_a.lookup(&k);
	if (!v) {
		struct syscalls_cpu_value *none = syscalls_cpu_zero.lookup(&zero);
		u32 uid = uid_of(task);
		if (!none)
			return;
		if (over_share(uid, SHARE_CPU, SYSCALLS_CPU_EACH_NS, SYSCALLS_CPU_MOST)) {
			lose(LOST_syscalls_shares);
			return;
		}
		if (c->slot) {
			syscalls_cpu_b.insert(&k, none);
			v = syscalls_cpu_b.lookup(&k);
		} else {
			syscalls_cpu_a.insert(&k, none);
			v = syscalls_cpu_a.lookup(&k);
		}
		if (!v) {
			lose(LOST_syscalls_cpu_a);
			return;
		}
		fill_proc(&v->proc, task);
		v->proc.tid = UNKNOWN32;
		v->uid = uid;
		if (long_run)
			v->by = r->proc;
		else
			fill_proc(&v->by, before);
	}
	u64 ns = now - since;
	__sync_fetch_and_add(&v->count, 1);
	__sync_fetch_and_add(&v->wait_ns, ns);
	if (ns > v->max_ns)
		v->max_ns = ns;
	if (ns < SYSCALLS_CPU_DELAY_NS || !syscalls_watched.lookup(&k.pid))
		return;
	struct syscalls_cpu_event *e = syscalls_cpu_events.ringbuf_reserve(sizeof(*e));
	if (!e) {
		lose(LOST_syscalls_cpu_events);
		return;
	}
	e->t_ns = now;
	e->wait_ns = ns;
	fill_proc(&e->proc, task);
	e->by = v->by;
	syscalls_cpu_events.ringbuf_submit(e, QUIET);
}
