/* The holder of a file lock that a call waits for. The blocking lock has its owner's number; the kernel's table of
 * numbers leads to the process. flock and fcntl pass here at each request; only those that must wait do more work. */

#define SYSCALLS_MUST_WAIT 1	/* FILE_LOCK_DEFERRED */
#define SYSCALLS_HOLDERS_EACH_NS 30000000	/* of a user's waits */
#define SYSCALLS_HOLDERS_MOST 256
#define SYSCALLS_CHAIN 16	/* requests that wait for each other, up to the holder */

struct syscalls_holder {
	u64 regs;		/* of the waiting call, as in call_hash() */
	u64 start_ns;
	u32 pid;
	u32 pad;
	char comm[16];
};
BPF_TABLE("lru_hash", u32, struct syscalls_holder, syscalls_holders, 2048);	/* by waiting thread */

/* The process of this number in the host's namespace, or 0. */
static __always_inline void *syscalls_task_of(void *task, u32 number)
{
#if HAS_xa_node__slots && HAS_pid_namespace__idr && HAS_task_struct__pid_links
	void *ns = 0, *at = 0, *pid = PTR(task, task_struct, thread_pid);
	u32 is = 0;
	READ(ns, ADDR(pid, pid, numbers), upid, ns);
	READ(at, ADDR(ns, pid_namespace, idr), idr, xa_head);
#pragma clang loop unroll(disable)
	for (int i = 0; i < 6; i++) {	/* an xarray: 6 bits of the number per level */
		void *node = (char *)at - 2;
		u8 shift = 0;
		if (((u64)at & 3) != 2)
			break;
		READ(shift, node, xa_node, shift);
		if (shift > 30)
			return 0;
		bpf_probe_read_kernel(&at, sizeof(at), ADDR(node, xa_node, slots) + 8 * ((number >> shift) & 63));
	}
	if (!at || (u64)at & 3)
		return 0;
	bpf_probe_read_kernel(&at, sizeof(at), ADDR(at, pid, tasks) + 8);	/* PIDTYPE_TGID, 8 bytes a head, 16 a node */
	if (!at)
		return 0;
	at = (char *)at - (u64)ADDR(0, task_struct, pid_links) - 16;
	READ(is, at, task_struct, tgid);
	return is == number ? at : 0;	/* a freed number may lead anywhere */
#else
	return 0;
#endif
}

#if HAS_file_lock_core__flc_blocker
#define SYSCALLS_BLOCKER(lock) PTR(lock, file_lock_core, flc_blocker)
#else	/* before 6.9 (a69ce85ec9af) */
#define SYSCALLS_BLOCKER(lock) PTR(lock, file_lock, fl_blocker)
#endif

static __always_inline int syscalls_on_lock(struct bpf_raw_tracepoint_args *ctx)
{
	struct syscalls_holder h = {};
	void *task = current_task(), *lock = (void *)ctx->args[1], *next;
	u32 flags = 0, tid = 0, number = 0;
	if ((int)ctx->args[2] != SYSCALLS_MUST_WAIT)
		return 0;
	LOAD(flags, task, task_struct, flags);
	if (flags & PF_KTHREAD)
		return 0;
	LOAD(tid, task, task_struct, pid);
#pragma clang loop unroll(disable)
	for (int i = 0; i < SYSCALLS_CHAIN; i++) {
		next = SYSCALLS_BLOCKER(lock);
		if (!next)
			break;
		lock = next;
	}
#if HAS_file_lock_core__flc_blocker
	READ(number, lock, file_lock_core, flc_pid);
#else
	READ(number, lock, file_lock, fl_pid);
#endif
	if (lock == (void *)ctx->args[1] || (int)number <= 0)
		return 0;	/* another host's lock (NFS) */
	h.pid = UNKNOWN32;
	void *holder = syscalls_task_of(task, number);
	if (holder) {
		GET(h.pid, holder, task_struct, tgid);
		h.start_ns = syscalls_begun(holder);
		bpf_probe_read_kernel_str(h.comm, sizeof(h.comm), ADDR(holder, task_struct, comm));
	} else {
#ifndef PIDNS_INUM
		h.pid = number;	/* it has ended; a child of it may hold the lock */
#endif
		h.start_ns = UNKNOWN64;
	}
	CALL_REGS(regs, task);
	h.regs = call_hash(regs);
	if (over_share(uid_of(task), SHARE_HOLDERS, SYSCALLS_HOLDERS_EACH_NS, SYSCALLS_HOLDERS_MOST))
		lose(LOST_syscalls_shares);
	else if (syscalls_holders.update(&tid, &h))
		lose(LOST_syscalls_events);
	return 0;
}

int syscalls_on_flock(struct bpf_raw_tracepoint_args *ctx)
{
	return syscalls_on_lock(ctx);
}

int syscalls_on_posix(struct bpf_raw_tracepoint_args *ctx)
{
	return syscalls_on_lock(ctx);
}

/* The holder of the lock that the thread's call waited for, if any. */
static __always_inline void syscalls_name_holder(struct syscalls_event *e, struct syscalls_thread *t, u32 tid)
{
	struct syscalls_holder *h = syscalls_holders.lookup(&tid);
	bool its = h && h->regs == t->call_regs;
	e->holder_pid = its ? h->pid : UNKNOWN32;
	e->holder_start_ns = its ? h->start_ns : UNKNOWN64;
	if (its)
		__builtin_memcpy(e->holder_comm, h->comm, sizeof(e->holder_comm));
	else
		__builtin_memset(e->holder_comm, 0, sizeof(e->holder_comm));
}
