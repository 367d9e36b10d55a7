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
	u64 nr = UNKNOWN64, result = 0;
	void *regs = call_regs(current_task());
	GET_REG(nr, regs, CALL_NUMBER);
	GET_REG(result, regs, CALL_RETURN);
	bool compat = COMPAT_CALL(READ, task);
	if (!CALL_UNDER_WAY(result))
		return 0xffff;
	return nr < 512 ? nr + (compat ? 512 : 0) : 0xffff;
}
#endif
