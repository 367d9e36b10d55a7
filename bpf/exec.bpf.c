/* Programs that start, so that the agent can look for libraries and Go limiters in them. Raw tracepoint; kernel 5.8 (ring buffer).
 * Driven by agent/probes/exec.py. The one ring that wakes the agent: a new program's first decisions should be seen. */

struct exec_event {
	u64 t_ns;
	struct proc proc;
};

BPF_RINGBUF_OUTPUT(exec_events, EXEC_PAGES);

int on_exec(struct bpf_raw_tracepoint_args *ctx)
{
	struct exec_event *e = exec_events.ringbuf_reserve(sizeof(*e));
	if (!e) {
		lose(LOST_exec_events);
		return 0;
	}
	e->t_ns = bpf_ktime_get_boot_ns();
	fill_proc(&e->proc, (void *)ctx->args[0]);
	exec_events.ringbuf_submit(e, WAKE);
	return 0;
}
