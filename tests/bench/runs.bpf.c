/* How long threads of one process stay on a processor at a time, as a linear histogram. Driven by
 * tests/bench/agent_cpu.py: RUNS_BUCKET_NS, RUNS_BUCKETS. */
BPF_F_TABLE("array", u32, u64, runs_counts, RUNS_BUCKETS, BPF_F_MMAPABLE);
BPF_F_TABLE("array", u32, u64, runs_of, 1, BPF_F_MMAPABLE);
BPF_TABLE("percpu_array", u32, u64, runs_since, 1);

int runs_switch(struct bpf_raw_tracepoint_args *ctx)
{
	u32 zero = 0;
	u64 now = bpf_ktime_get_ns();
	u64 *since = runs_since.lookup(&zero);
	u64 *of = runs_of.lookup(&zero);
	if (!since || !of)
		return 0;
	u64 ran_ns = now - *since;
	u64 began = *since;
	*since = now;
	if (!began || bpf_get_current_pid_tgid() >> 32 != *of)
		return 0;
	u32 bucket = ran_ns / RUNS_BUCKET_NS;
	if (bucket >= RUNS_BUCKETS)
		bucket = RUNS_BUCKETS - 1;
	u64 *count = runs_counts.lookup(&bucket);
	if (count)
		__sync_fetch_and_add(count, 1);
	return 0;
}
