/* Where threads of a few processes run: time on the CPU by thread, call and user stack. Attached for seconds only,
 * kernel 5.8. Driven by agent/investigate/. The scheduler charges a thread its run time at each tick, and at each
 * scheduling decision on its CPU: the time since the last charge counts for its present place. If another CPU decides,
 * there is no stack (-1). */

struct oncpu_key {
	u32 pid;
	u32 tid;
	s32 user_stack;
	u16 nr;
	u16 pad;
};

struct oncpu_value {
	u64 count;
	u64 sum_ns;
	struct proc proc;
};
BPF_TABLE("hash", struct oncpu_key, struct oncpu_value, oncpu_sums, 2048);

/* Separate stacks: samples of running code are all different, and would fill the map for sleepers. Numbers from
 * ONCPU_STACKS on belong to this map. */
BPF_TABLE("stacktrace", int, struct profile_stack, oncpu_stacks, 2048);
#define ONCPU_STACKS 65536

int oncpu_on_runtime(struct bpf_raw_tracepoint_args *ctx)
{
	struct control *c = profile_control(bpf_ktime_get_boot_ns());
	void *task = (void *)ctx->args[0];
	struct oncpu_value none = {};
	struct oncpu_key key = {.user_stack = -1, .nr = 0xffff};
	if (!c)
		return 0;
	GET(key.pid, task, task_struct, tgid);
	if (!profile_has(c, key.pid))
		return 0;
	GET(key.tid, task, task_struct, pid);
	if (task == current_task()) {
		key.nr = profile_call(task);
		key.user_stack = oncpu_stacks.get_stackid(ctx, BPF_F_USER_STACK);
		if (key.user_stack >= 0)
			key.user_stack += ONCPU_STACKS;
	}
	struct oncpu_value *v = oncpu_sums.lookup(&key);
	if (!v) {
		fill_proc(&none.proc, task);
		oncpu_sums.insert(&key, &none);
		v = oncpu_sums.lookup(&key);
	}
	if (!v) {
		lose(LOST_oncpu_sums);
		return 0;
	}
	__sync_fetch_and_add(&v->count, 1);
	__sync_fetch_and_add(&v->sum_ns, ctx->args[1]);
	return 0;
}
