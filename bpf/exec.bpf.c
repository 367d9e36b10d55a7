/* Programs that start, so that the agent can look for libraries and Go limiters in them. Raw tracepoint; kernel 5.8
 * (ring buffer). Driven by agent/probes/exec.py. Each record wakes the agent, for the new program's first decisions. */

struct exec_event {
	u64 t_ns;
	struct proc proc;
	u64 root_inode;		/* of its root directory */
	u32 root_device;
	u32 mount_namespace;
};

BPF_RINGBUF_OUTPUT(exec_events, EXEC_PAGES);

int on_exec(struct bpf_raw_tracepoint_args *ctx)
{
	void *task = (void *)ctx->args[0];
	struct exec_event *e = exec_events.ringbuf_reserve(sizeof(*e));
	if (!e) {
		lose(LOST_exec_events);
		return 0;
	}
	e->t_ns = bpf_ktime_get_boot_ns();
	fill_proc(&e->proc, task);
	void *root = PTR(PTR(ADDR(PTR(task, task_struct, fs), fs_struct, root), path, dentry), dentry, d_inode);
	void *mounts = PTR(PTR(task, task_struct, nsproxy), nsproxy, mnt_ns);
	e->root_inode = 0;
	e->root_device = e->mount_namespace = 0;
	GET(e->root_inode, root, inode, i_ino);
	GET(e->root_device, PTR(root, inode, i_sb), super_block, s_dev);
	GET(e->mount_namespace, ADDR(mounts, mnt_namespace, ns), ns_common, inum);
	exec_events.ringbuf_submit(e, WAKE);
	return 0;
}
