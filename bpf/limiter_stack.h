/* The callers of a limiter: the return addresses of Go's frames, which keep the frame pointer, at a function's first
 * instruction or its RET. A decision's record has only their number. The stack itself is sent once, in its own
 * ring, and again after a while. */
#pragma once

#define LIMITER_FRAMES 12
#define LIMITER_RESEND_NS 60000000000ull
#define LIMITER_STACKS_MOST 256	/* stacks of a user's programs sent at once */
#define LIMITER_STACKS_EACH_NS 40000000ull

struct limiter_stack {
	u64 id;			/* a hash of what follows and of the process, never 0 */
	u64 inode;		/* of the executable, as in struct limiter_file */
	u32 device;
	u32 library;
	u64 start_code;		/* load address of its code */
	u64 frames[12];		/* return addresses, innermost first; 0 after the last */
};
BPF_RINGBUF_OUTPUT(limiter_stacks, 32);

/* Number of a stack -> when it was sent. */
BPF_F_TABLE("lru_hash", u64, u64, limiter_sent, 4096, 0);

/* Written by the agent, so that no user can make two stacks with one number. */
struct limiter_secret {
	u64 seed;
};
BPF_F_TABLE("array", u32, struct limiter_secret, limiter_secret, 1, BPF_F_MMAPABLE);

static __always_inline u64 limiter_mixed(u64 hash, u64 word)
{
	hash = (hash ^ word) * 0x9E3779B97F4A7C15ull;
	return hash ^ hash >> 29;
}

static __always_inline u64 limiter_walk(struct pt_regs *ctx, u64 start_code, u64 hash, u64 *frames)
{
	u64 frame[2] = {reg_frame(ctx), 0};
	u64 base = reg_frame(ctx);
	read_return_address(&frame[1], ctx);
#pragma clang loop unroll(disable)
	for (int i = 0; i < LIMITER_FRAMES; i++) {
		hash = limiter_mixed(hash, frame[1] - start_code);
		if (frames)
			frames[i] = frame[1];
		if (!base || bpf_probe_read_user(frame, sizeof(frame), (void *)base) || (frame[0] && frame[0] <= base))
			break;
		base = frame[0];
	}
	return hash;
}

/* The number of the calling stack; 0 if unknown. */
static __always_inline u64 limiter_stack_of(struct pt_regs *ctx, u32 library)
{
	void *task = (void *)bpf_get_current_task(), *mm = PTR(task, task_struct, mm), *inode;
	struct limiter_secret *secret;
	struct limiter_stack *e;
	u64 id, now, start_code = 0, *sent;
	u32 zero = 0;
	secret = limiter_secret.lookup(&zero);
	if (!secret)
		return 0;
	GET(start_code, mm, mm_struct, start_code);
	id = limiter_mixed(secret->seed, bpf_get_current_pid_tgid() >> 32 | (u64)library << 32);
	id = limiter_walk(ctx, start_code, id, 0);
	if (!id)
		return 0;
	now = bpf_ktime_get_boot_ns();
	sent = limiter_sent.lookup(&id);
	if (sent && now - *sent < LIMITER_RESEND_NS)
		return id;
	/* it is sent with a later decision */
	if (over_share(uid_of(task), SHARE_STACKS, LIMITER_STACKS_EACH_NS, LIMITER_STACKS_MOST))
		return id;
	e = limiter_stacks.ringbuf_reserve(sizeof(*e));
	if (!e)
		return id;
	__builtin_memset(e, 0, sizeof(*e));
	inode = PTR(PTR(mm, mm_struct, exe_file), file, f_inode);
	e->id = id;
	e->library = library;
	e->start_code = start_code;
	GET(e->inode, inode, inode, i_ino);
	GET(e->device, PTR(inode, inode, i_sb), super_block, s_dev);
	limiter_walk(ctx, start_code, 0, e->frames);
	limiter_stacks.ringbuf_submit(e, QUIET);
	limiter_sent.update(&id, &now);
	return id;
}
