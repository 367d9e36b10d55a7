/* The kernel's own locks: who waited for which lock, how long, and on which kernel path. Kernel 5.19
 * (contention_begin). Attached for seconds only. Counted are the waits of the profiled processes, and on any CPU those
 * between the arrival of a SYN and its SYN-ACK (bpf/synack.h). Driven by agent/investigate/. */

enum { CONTENTION_PROCESS, CONTENTION_HANDSHAKE };	/* in the order of the table's enum */

struct contention_key {
	u64 lock;
	u32 pid;
	s32 kernel_stack;
	u16 flags;		/* LCB_F_*, include/trace/events/lock.h */
	u8 path;
	u8 pad[5];
};

struct contention_value {
	u64 count;
	u64 sum_ns;
	u64 max_ns;
	struct proc proc;
};
BPF_TABLE("hash", struct contention_key, struct contention_value, contention_sums, 1024);

struct contention_wait {
	u64 lock;
	u32 tid;		/* the idle task has none: its CPU */
	u32 pad;
};
struct contention_begun {
	u64 at_ns;
	struct contention_key key;
};
BPF_TABLE("hash", struct contention_wait, struct contention_begun, contention_begun, 1024);

static __always_inline void contention_who(struct contention_wait *w, u64 lock)
{
	w->lock = lock;
	w->pad = 0;
	w->tid = bpf_get_current_pid_tgid();
	if (!w->tid)
		w->tid = 0x80000000 | bpf_get_smp_processor_id();
}

int contention_on_begin(struct bpf_raw_tracepoint_args *ctx)
{
	u64 now = bpf_ktime_get_boot_ns();
	struct control *c = profile_control(now);
	struct contention_begun begun = {.at_ns = now};
	struct contention_wait w;
	if (!c)
		return 0;
	begun.key.pid = bpf_get_current_pid_tgid() >> 32;
	begun.key.path = synack_answering(now) ? CONTENTION_HANDSHAKE : CONTENTION_PROCESS;
	if (begun.key.path == CONTENTION_PROCESS && !profile_has(c, begun.key.pid))
		return 0;
	if (begun.key.path == CONTENTION_HANDSHAKE)
		begun.key.pid = 0;	/* the interrupted task is not the cause */
	begun.key.lock = ctx->args[0];
	begun.key.flags = ctx->args[1];
	begun.key.kernel_stack = profile_stacks.get_stackid(ctx, 0);
	contention_who(&w, ctx->args[0]);
	if (contention_begun.update(&w, &begun))
		lose(LOST_contention_begun);
	return 0;
}

int contention_on_end(struct bpf_raw_tracepoint_args *ctx)
{
	u64 now = bpf_ktime_get_boot_ns();
	struct contention_value none = {};
	struct contention_wait w;
	if (!profile_control(now))
		return 0;
	contention_who(&w, ctx->args[0]);
	struct contention_begun *begun = contention_begun.lookup(&w);
	if (!begun)
		return 0;
	u64 ns = now - begun->at_ns;
	struct contention_key key = begun->key;
	contention_begun.delete(&w);
	struct contention_value *v = contention_sums.lookup(&key);
	if (!v) {
		if (key.path == CONTENTION_HANDSHAKE)
			no_proc(&none.proc);
		else
			fill_proc(&none.proc, current_task());
		none.proc.tid = UNKNOWN32;
		contention_sums.insert(&key, &none);
		v = contention_sums.lookup(&key);
	}
	if (!v) {
		lose(LOST_contention_sums);
		return 0;
	}
	__sync_fetch_and_add(&v->count, 1);
	__sync_fetch_and_add(&v->sum_ns, ns);
	if (ns > v->max_ns)
		v->max_ns = ns;
	return 0;
}
