/* Common to the programs of an on-demand profile, which are attached for seconds and count for a few processes only
 * (agent/investigate/). Included in several families, so guarded. */
#ifndef PROFILE_PIDS
#define PROFILE_PIDS 8
#define PROFILE_FRAMES 32

struct profile_stack {
	u64 ip[PROFILE_FRAMES];
};
/* Kernel and user stacks by number; emptied after each profile. On a collision of hashes the second stack is dropped.
 */
BPF_TABLE("stacktrace", int, struct profile_stack, profile_stacks, 1024);

/* Keys and values that are one number, as user space reads them. */
struct profile_tid {
	u32 tid;
};
struct profile_time {
	u64 t_ns;
};
struct profile_address {
	u64 address;
};

/* The control map during a profile, else 0. */
static __always_inline struct control *profile_control(u64 now)
{
	struct control *c = get_control();
	return c && now < c->profile_until_ns ? c : 0;
}

static __always_inline bool profile_has(struct control *c, u32 pid)
{
#pragma unroll
	for (int i = 0; i < PROFILE_PIDS; i++)
		if (pid && c->profile_pids[i] == pid)
			return true;
	return false;
}

/* The current task's system call; all ones outside of one (such as a page fault). 32-bit programs' calls as in
 * bpf/syscalls_call.h. */
static __always_inline u16 profile_call(void *task)
{
	u64 nr = UNKNOWN64, ax = 0;
	u32 status = 0;
#if FUNC_task_pt_regs
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(current_task());
	nr = *(const u64 *)((const char *)regs + __builtin_offsetof(struct pt_regs, orig_ax));
	ax = *(const u64 *)((const char *)regs + __builtin_offsetof(struct pt_regs, ax));
#else
	struct pt_regs *regs = (struct pt_regs *)((char *)PTR(task, task_struct, stack) + 16384) - 1;
	bpf_probe_read_kernel(&nr, sizeof(nr), (const char *)regs + __builtin_offsetof(struct pt_regs, orig_ax));
	bpf_probe_read_kernel(&ax, sizeof(ax), (const char *)regs + __builtin_offsetof(struct pt_regs, ax));
#endif
#if HAS_thread_info__status
	READ(status, task, thread_info, status);
#endif
	if ((long)ax != -38)	/* orig_ax is valid while ax is -ENOSYS, between entry and return */
		return 0xffff;
	return nr < 512 ? nr + (status & 2 ? 512 : 0) : 0xffff;
}
#endif
