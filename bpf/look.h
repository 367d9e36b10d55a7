/* What the programs of an on-demand profile share: they are attached for seconds, while something is wrong, and count for a few processes only
 * (agent/investigate/). Parts of each of those families, so guarded. */
#ifndef LOOK_PIDS
#define LOOK_PIDS 8
#define LOOK_FRAMES 32

struct look_stack {
	u64 ip[LOOK_FRAMES];
};
/* Of kernel and user, by number; emptied after each look. What two stacks would share a place of is not told twice: the second has none. */
BPF_TABLE("stacktrace", int, struct look_stack, look_stacks, 1024);

/* Keys and values that are one number, as user space reads them. */
struct look_tid {
	u32 tid;
};
struct look_time {
	u64 t_ns;
};
struct look_address {
	u64 address;
};

/* The control map while a look goes on, else 0. */
static __always_inline struct control *look_now(u64 now)
{
	struct control *c = get_control();
	return c && now < c->look_until_ns ? c : 0;
}

static __always_inline bool look_at(struct control *c, u32 pid)
{
#pragma unroll
	for (int i = 0; i < LOOK_PIDS; i++)
		if (pid && c->look_pids[i] == pid)
			return true;
	return false;
}

/* The system call that the current task is in; all ones outside of one (a page fault, say). 32-bit programs' calls as in bpf/syscalls_call.h. */
static __always_inline u16 look_call(void *task)
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
	if ((long)ax != -38)	/* -ENOSYS stands there from entry to return; else an interrupt or a page fault, whose number is none of a call */
		return 0xffff;
	return nr < 512 ? nr + (status & 2 ? 512 : 0) : 0xffff;
}
#endif
