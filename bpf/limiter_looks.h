/* Looks at buckets of programs that decide too often to be watched: a limiter's words as they are when one of the program's threads leaves a processor, which costs it no trap.
 * Attached while there is such a program. A look that is not there is no loss: the next one says what was let through since the one before.
 * Which process and where, the agent says; it gets nothing but what has a bucket's form. Nothing here waits for memory that is not there. */
#pragma once

#define LIMITER_HOT 16		/* limiters of a process */
#define LIMITER_HOT_CPUS 64
#define LIMITER_WORDS 6
#define LIMITER_2019 1		/* in a limiter's address, which is even: its lock comes third */
#define LIMITER_MOST_BURST (1ull << 40)
#define LIMITER_TICK_NS 10000000	/* as /proc tells when a process began */

/* By process; written by the agent. */
struct limiter_hot {
	u64 limiters[16];
	u64 gate_ns;		/* between looks, at least */
	u64 idle_gate_ns;	/* the same where none of its threads runs any more */
	u64 proc_start_ns;	/* whose decisions were seen, as what program */
	u32 exec_id;
	u32 count;
};
BPF_F_TABLE("hash", u32, struct limiter_hot, limiter_hot, 64, 0);

/* By process: when it was looked last, and for how long none of its threads ran. */
struct limiter_cpu {
	u64 looked_ns;
	u64 off_since_ns;
	u64 off_ns;
	u8 on[LIMITER_HOT_CPUS];
};
BPF_F_TABLE("lru_hash", u32, struct limiter_cpu, limiter_cpus, 256, 0);

struct limiter_look {
	u64 t_ns;		/* CLOCK_BOOTTIME */
	u64 limiter;
	u64 off_ns;		/* of the process, so far: none of its threads ran */
	u64 words[6];		/* the limiter's first */
	u32 pid;
	u32 pad;
};
BPF_RINGBUF_OUTPUT(limiter_looks, 64);

static __always_inline struct limiter_cpu *limiter_cpu_of(u32 pid)
{
	struct limiter_cpu fresh = {}, *found = limiter_cpus.lookup(&pid);
	if (found)
		return found;
	limiter_cpus.update(&pid, &fresh);
	return limiter_cpus.lookup(&pid);
}

static __always_inline bool limiter_runs(struct limiter_cpu *cpu)
{
	u64 any = 0;
#pragma clang loop unroll(full)
	for (int i = 0; i < LIMITER_HOT_CPUS / 8; i++)
		any |= ((u64 *)cpu->on)[i];
	return any != 0;
}

/* The words twice: one that others are at is told by its lock, or differs. */
static __always_inline void limiter_look_at(u64 place, struct limiter_cpu *cpu, u32 pid, u64 now)
{
	u64 words[LIMITER_WORDS], again[LIMITER_WORDS], lock, burst, limiter = place & ~1ull;
	struct limiter_look *e;
	if (bpf_probe_read_user(words, sizeof(words), (void *)limiter) || bpf_probe_read_user(again, sizeof(again), (void *)limiter))
		return;
	lock = place & LIMITER_2019 ? words[2] : words[0];
	burst = place & LIMITER_2019 ? words[1] : words[2];
	if (lock & 1 || burst > LIMITER_MOST_BURST)
		return;
	for (int i = 0; i < LIMITER_WORDS; i++)
		if (words[i] != again[i])
			return;
	e = limiter_looks.ringbuf_reserve(sizeof(*e));
	if (!e)
		return;
	e->t_ns = now;
	e->limiter = limiter;
	e->off_ns = cpu->off_ns;
	__builtin_memcpy(e->words, words, sizeof(words));
	e->pid = pid;
	e->pad = 0;
	limiter_looks.ringbuf_submit(e, QUIET);
}

/* Whether it is the process, and the program, whose decisions were seen there: what another one has at these addresses is its own affair. */
static __always_inline bool limiter_same(struct limiter_hot *hot, void *task)
{
	struct proc proc = {};
	u32 exec_id = 0;
	GET(exec_id, task, task_struct, self_exec_id);
	fill_proc(&proc, task);
	return exec_id == hot->exec_id && proc.proc_start_ns / LIMITER_TICK_NS == hot->proc_start_ns / LIMITER_TICK_NS;
}

static __always_inline void limiter_leaves(u32 pid, u32 number, bool stays, u64 now)
{
	struct limiter_hot *hot = limiter_hot.lookup(&pid);
	struct limiter_cpu *cpu;
	void *task = (void *)bpf_get_current_task();
	u64 gate;
	if (!hot)
		return;
	cpu = limiter_cpu_of(pid);
	if (!cpu)
		return;
	cpu->on[number] = stays;
	gate = hot->gate_ns;
	if (!limiter_runs(cpu)) {
		cpu->off_since_ns = now;
		gate = hot->idle_gate_ns;
	}
	if (now - cpu->looked_ns < gate || !PTR(task, task_struct, mm))	/* without an mm: what is mapped is another's */
		return;
	cpu->looked_ns = now;
	if (!limiter_same(hot, task))
		return;
#pragma clang loop unroll(disable)
	for (int i = 0; i < LIMITER_HOT; i++) {
		if (i >= hot->count)
			break;
		limiter_look_at(hot->limiters[i], cpu, pid, now);
	}
}

static __always_inline void limiter_comes(u32 pid, u32 number, u64 now)
{
	struct limiter_cpu *cpu;
	if (!limiter_hot.lookup(&pid))
		return;
	cpu = limiter_cpu_of(pid);
	if (!cpu)
		return;
	cpu->on[number] = 1;
	if (cpu->off_since_ns) {
		cpu->off_ns += now - cpu->off_since_ns;
		cpu->off_since_ns = 0;
	}
}

int limiter_on_switch(struct bpf_raw_tracepoint_args *ctx)
{
	u32 number = bpf_get_smp_processor_id() & (LIMITER_HOT_CPUS - 1), before = bpf_get_current_pid_tgid() >> 32, after = 0;
	u64 now = bpf_ktime_get_boot_ns();
	GET(after, (void *)ctx->args[2], task_struct, tgid);
	if (before)
		limiter_leaves(before, number, before == after, now);
	if (after && after != before)
		limiter_comes(after, number, now);
	return 0;
}
