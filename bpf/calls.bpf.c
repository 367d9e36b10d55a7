/* All system calls of a few processes, by call: number, duration, failures. Attached for seconds only, since these
 * tracepoints put every system call of every process on the slow path. Kernel 5.8. Driven by agent/investigate/. */

struct calls_key {
	u32 pid;
	u32 nr;
};
struct calls_value {
	u64 count;
	u64 errors;
	u64 sum_ns;
	u64 max_ns;
	struct proc proc;
	u32 hist[64];
};
BPF_TABLE("hash", struct calls_key, struct calls_value, calls_sums, 512);
BPF_TABLE("array", u32, struct calls_value, calls_zero, 1);

struct calls_open {
	u64 at_ns;
	u64 nr;
};
BPF_TABLE("hash", u32, struct calls_open, calls_open, 2048);	/* tid */

int calls_on_enter(struct bpf_raw_tracepoint_args *ctx)
{
	u64 now = bpf_ktime_get_boot_ns(), who = bpf_get_current_pid_tgid();
	struct control *c = profile_control(now);
	u32 tid = who;
	if (!c || !profile_has(c, who >> 32))
		return 0;
	struct calls_open open = {.at_ns = now, .nr = profile_call(current_task())};
	if (calls_open.update(&tid, &open))
		lose(LOST_calls_open);
	return 0;
}

int calls_on_exit(struct bpf_raw_tracepoint_args *ctx)
{
	u64 now = bpf_ktime_get_boot_ns(), who = bpf_get_current_pid_tgid();
	struct control *c = profile_control(now);
	u32 tid = who, zero = 0;
	long ret = ctx->args[1];
	if (!c || !profile_has(c, who >> 32))
		return 0;
	struct calls_open *open = calls_open.lookup(&tid);
	if (!open)
		return 0;
	struct calls_key key = {.pid = who >> 32, .nr = open->nr};
	u64 ns = now - open->at_ns;
	calls_open.delete(&tid);
	struct calls_value *v = calls_sums.lookup(&key), *none = calls_zero.lookup(&zero);
	if (!v && none) {
		calls_sums.insert(&key, none);
		v = calls_sums.lookup(&key);
		if (v) {
			fill_proc(&v->proc, current_task());
			v->proc.tid = UNKNOWN32;
		}
	}
	if (!v) {
		lose(LOST_calls_sums);
		return 0;
	}
	__sync_fetch_and_add(&v->count, 1);
	__sync_fetch_and_add(&v->sum_ns, ns);
	if (ns > v->max_ns)
		v->max_ns = ns;
	if (ret < 0 && ret >= -4095)
		__sync_fetch_and_add(&v->errors, 1);
	__sync_fetch_and_add(&v->hist[log2_bucket(ns)], 1);
	return 0;
}
