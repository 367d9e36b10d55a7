/* Timed calls, on demand: sys_enter and sys_exit, for sampling windows or full timing. sched_switch
 * (bpf/syscalls.bpf.c) moves a thread's open call from CPU to CPU. */

#define SYSCALLS_SETS_LOG2 6
#define SYSCALLS_PLACES (2 << SYSCALLS_SETS_LOG2)	/* two per set */
#ifndef SYSCALLS_CPUS
#define SYSCALLS_CPUS 1
#endif

/* The timed call of this CPU's current thread; enter_ns 0: none. sched_switch keeps it up to date, so that sys_enter
 * and sys_exit need no look-up by thread. Two cache lines per CPU: they are fetched in pairs, and the neighbour writes
 * at each call too. */
struct syscalls_open {
	u64 enter_ns;
	u32 nr;
	u32 pad[29];
};
BPF_TABLE("array", u32, struct syscalls_open, syscalls_open, SYSCALLS_CPUS);

/* Sums of timed calls by CPU, slot and place: only that CPU writes them, hence no atomics. A key has two possible
 * places. If other keys hold both, the smaller one's sums move to syscalls_a or _b, which the agent reads together with
 * these. Key and counters share a cache line. */
struct syscalls_sum {
	struct syscalls_key key;
	struct syscalls_value value;
	u64 pad[2];
};
BPF_F_TABLE("array", u32, struct syscalls_sum, syscalls_sums, SYSCALLS_CPUS * 2 * SYSCALLS_PLACES, BPF_F_MMAPABLE);

/* Saves the timed call of the thread that leaves this CPU. */
static __always_inline void syscalls_put_away(void *task, u32 flags)
{
	u32 cpu = bpf_get_smp_processor_id(), tid = 0;
	struct syscalls_open *o = syscalls_open.lookup(&cpu);
	struct control *c = get_control();
	if (!o || !c || !o->enter_ns)
		return;
	u64 enter_ns = o->enter_ns;
	o->enter_ns = 0;
	if (enter_ns < c->sample_from_ns || flags & PF_EXITING)
		return;
	LOAD(tid, task, task_struct, pid);
	struct syscalls_thread *t = syscalls_thread_of(tid);
	if (!t)
		return;
	t->enter_ns = enter_ns;
	t->enter_nr = o->nr;
}

/* Restores it. */
static __always_inline void syscalls_take_up(struct syscalls_thread *t)
{
	u32 cpu = bpf_get_smp_processor_id();
	struct syscalls_open *o = syscalls_open.lookup(&cpu);
	if (o) {
		o->nr = t->enter_nr;
		o->enter_ns = t->enter_ns;
	}
	t->enter_ns = 0;
}

int syscalls_on_sys_enter(struct bpf_raw_tracepoint_args *ctx)
{
	u32 cpu = bpf_get_smp_processor_id();
	struct syscalls_open *o = syscalls_open.lookup(&cpu);
	if (!o) {
		lose(LOST_syscalls_a);
		return 0;
	}
	u32 nr = ctx->args[1] + COMPAT_CALL(LOAD, current_task()) * SYSCALLS_COMPAT;
	/* In this order: a thread that is preempted between the two (Linux 7.2) takes its start along, and writes its number
	 * when it is back. */
	*(volatile u64 *)&o->enter_ns = bpf_ktime_get_boot_ns();
	*(volatile u32 *)&o->nr = nr;
	return 0;
}

/* Takes a place over for another key. */
static __always_inline void syscalls_claim(struct syscalls_sum *s, u32 slot)
{
	void *task = (void *)bpf_get_current_task();
	struct syscalls_value *v = s->value.count ? syscalls_element(task, &s->key, slot) : 0;
	if (v) {
		v->proc = s->value.proc;
		__sync_fetch_and_add(&v->count, s->value.count);
		__sync_fetch_and_add(&v->errors, s->value.errors);
		__sync_fetch_and_add(&v->sum_ns, s->value.sum_ns);
		if (s->value.max_ns > v->max_ns)
			v->max_ns = s->value.max_ns;
#pragma clang loop unroll(disable)
		for (u32 i = 0; i < 64; i++)
			if (s->value.hist[i])
				__sync_fetch_and_add(&v->hist[i], s->value.hist[i]);
	}
	__builtin_memset(s, 0, sizeof(*s));
	fill_proc(&s->value.proc, task);
	s->value.proc.tid = UNKNOWN32;
}

/* The place of this key. */
static __always_inline struct syscalls_sum *syscalls_sum_of(struct syscalls_key *key, u32 cpu, u32 slot)
{
	u32 set = (key->pid * 0x9e3779b1u + key->nr * 0x85ebca6bu) >> (32 - SYSCALLS_SETS_LOG2);
	u32 one = (cpu * 2 + slot) * SYSCALLS_PLACES + 2 * set, other = one + 1;
	u64 wanted = *(u64 *)key;	/* the rest of a timed call's key is zero */
	struct syscalls_sum *a = syscalls_sums.lookup(&one);
	if (__builtin_expect(!a || (*(u64 *)&a->key == wanted && a->value.count), 1))
		return a;
	struct syscalls_sum *b = syscalls_sums.lookup(&other);
	if (!b || (*(u64 *)&b->key == wanted && b->value.count))
		return b;
	if (b->value.count < a->value.count)
		a = b;
	syscalls_claim(a, slot);
	a->key = *key;
	return a;
}

/* A slow call in full mode: an event. */
static __always_inline void syscalls_slow(struct bpf_raw_tracepoint_args *ctx, u32 nr, u64 enter_ns, u64 now)
{
	u32 tid = bpf_get_current_pid_tgid();
	struct syscalls_thread *t = syscalls_thread_of(tid);
	void *task = (void *)bpf_get_current_task();
	void *regs = (void *)ctx->args[0];
	unsigned long first = 0;
	if (!t)
		return;
	if (!t->call_ns || t->call_ns < enter_ns)	/* what sched_switch saw belongs to an earlier call */
		t->blocked_ns = t->run_queue_ns = t->call_regs = 0;
	bpf_probe_read_kernel(&first, sizeof(first), nr < SYSCALLS_COMPAT ? REG_ADDR(regs, CALL_ARG1) : REG_ADDR(regs, COMPAT_ARG1));
	syscalls_classify(t, task, nr, first, 0);
	if (t->now.kind == SYSCALLS_WAITING)
		return;
	struct syscalls_event *e = syscalls_events.ringbuf_reserve(sizeof(*e));
	if (!e) {
		lose(LOST_syscalls_events);
		return;
	}
	__builtin_memset(e, 0, sizeof(*e));
	syscalls_fill(e, task, t, tid);
	e->t_ns = now;
	e->duration_ns = now - enter_ns;
	e->basis = SYSCALLS_ALL;
	if (t->off_ns > enter_ns)
		e->blocked_ns += syscalls_arrived(t, task, now) - t->off_ns;
	e->ret = ctx->args[1];
	syscalls_events.ringbuf_submit(e, syscalls_events_flags());
}

int syscalls_on_sys_exit(struct bpf_raw_tracepoint_args *ctx)
{
	u32 cpu = bpf_get_smp_processor_id();
	struct syscalls_open *o = syscalls_open.lookup(&cpu);
	struct control *c = get_control();
	if (!o || !c)
		return 0;
	/* the thread's switch-in was not seen, or nothing of the call */
	if (__builtin_expect(!o->enter_ns, 0)) {
		u32 tid = bpf_get_current_pid_tgid();
		struct syscalls_thread *t = syscalls_threads.lookup(&tid);
		if (!t || !t->enter_ns)
			return 0;
		syscalls_take_up(t);
	}
	u64 enter_ns = o->enter_ns, now = bpf_ktime_get_boot_ns(), ns = now - enter_ns;
	u32 tgid = bpf_get_current_pid_tgid() >> 32, nr = o->nr, slot = c->slot & 1;
	bool full = !c->sample_from_ns;
	long ret = ctx->args[1];
	o->enter_ns = 0;
	if (enter_ns < c->sample_from_ns)
		return 0;	/* left over from an earlier window */
	struct syscalls_key key = {.pid = tgid, .nr = nr, .basis = full ? SYSCALLS_ALL : SYSCALLS_SAMPLED, .kind = UNKNOWN8};
	struct syscalls_sum *s = syscalls_sum_of(&key, cpu, slot);
	if (!s)
		return 0;
	s->value.count++;
	s->value.sum_ns += ns;
	if (ns > s->value.max_ns)
		s->value.max_ns = ns;
	if (ret < 0 && ret >= -4095)
		s->value.errors++;
	s->value.hist[log2_bucket(ns)]++;
	if (__builtin_expect(full && ns >= SYSCALLS_SLOW_NS, 0))
		syscalls_slow(ctx, nr, enter_ns, now);
	return 0;
}
