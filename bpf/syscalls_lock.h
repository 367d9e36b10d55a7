/* The holder of a file lock that a call waits for, or that a thread was refused before it sleeps and tries again. The
 * blocking lock has its owner's number; the kernel's table of numbers leads to the process. flock and fcntl pass here at
 * each request; only those that must wait, or are refused, do more work. */

#define SYSCALLS_MUST_WAIT 1	/* FILE_LOCK_DEFERRED */
#define SYSCALLS_REFUSED -11	/* EAGAIN */
#define SYSCALLS_RETRY_NS 10000000	/* from the refusal to the sleep, at most */
#define SYSCALLS_LOCKS 16	/* of a file that are looked at */
#define SYSCALLS_HOLDERS_EACH_NS 30000000	/* of a user's waits */
#define SYSCALLS_HOLDERS_MOST 256
#define SYSCALLS_CHAIN 16	/* requests that wait for each other, up to the holder */

struct syscalls_holder {
	u64 regs;		/* of the waiting call, as in call_hash() */
	u64 refused_ns;		/* when the lock was refused; 0: the call waits */
	u64 start_ns;
	u32 pid;
	u32 pad;
	char comm[16];
	char file[32];		/* of a refused lock */
};
BPF_TABLE("lru_hash", u32, struct syscalls_holder, syscalls_holders, 2048);	/* by waiting thread */

enum { SYSCALLS_BY_TID, SYSCALLS_BY_TGID };	/* PIDTYPE_PID, PIDTYPE_TGID */

/* The thread, or the process, of this number in the host's namespace, or 0. */
static __always_inline void *syscalls_task_of(void *task, u32 number, u32 type)
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
	bpf_probe_read_kernel(&at, sizeof(at), ADDR(at, pid, tasks) + 8 * type);	/* 8 bytes a head, 16 a node */
	if (!at)
		return 0;
	at = (char *)at - (u64)ADDR(0, task_struct, pid_links) - 16 * type;
	if (type == SYSCALLS_BY_TID)
		READ(is, at, task_struct, pid);
	else
		READ(is, at, task_struct, tgid);
	return is == number ? at : 0;	/* a freed number may lead anywhere */
#else
	return 0;
#endif
}

#if HAS_file_lock_core__flc_blocker
#define SYSCALLS_LOCK_AT(list) ((char *)(list) - (u64)ADDR(0, file_lock_core, flc_list))
#define SYSCALLS_LOCK_NEXT(lock) PTR(lock, file_lock_core, flc_list)
#define SYSCALLS_LOCK_BLOCKER(lock) PTR(lock, file_lock_core, flc_blocker)
#define SYSCALLS_LOCK_OWNER(lock) PTR(lock, file_lock_core, flc_owner)
#define SYSCALLS_LOCK_FILE(lock) PTR(lock, file_lock_core, flc_file)
#define SYSCALLS_LOCK_TYPE(dst, lock) READ(dst, lock, file_lock_core, flc_type)
#define SYSCALLS_LOCK_PID(dst, lock) READ(dst, lock, file_lock_core, flc_pid)
#else	/* before 6.9 (a69ce85ec9af) */
#define SYSCALLS_LOCK_AT(list) ((char *)(list) - (u64)ADDR(0, file_lock, fl_list))
#define SYSCALLS_LOCK_NEXT(lock) PTR(lock, file_lock, fl_list)
#define SYSCALLS_LOCK_BLOCKER(lock) PTR(lock, file_lock, fl_blocker)
#define SYSCALLS_LOCK_OWNER(lock) PTR(lock, file_lock, fl_owner)
#define SYSCALLS_LOCK_FILE(lock) PTR(lock, file_lock, fl_file)
#define SYSCALLS_LOCK_TYPE(dst, lock) READ(dst, lock, file_lock, fl_type)
#define SYSCALLS_LOCK_PID(dst, lock) READ(dst, lock, file_lock, fl_pid)
#endif
#define SYSCALLS_LOCK_WRITES 1	/* F_WRLCK */

/* The lock that a request waits for, through requests that wait for each other. */
static __always_inline void *syscalls_blocker(void *lock)
{
#pragma clang loop unroll(disable)
	for (int i = 0; i < SYSCALLS_CHAIN; i++) {
		void *next = SYSCALLS_LOCK_BLOCKER(lock);
		if (!next)
			break;
		lock = next;
	}
	return lock;
}

/* Of the locks in this list one that excludes the request; the request itself if none is found. */
static __always_inline void *syscalls_conflict(const char *list, void *request)
{
	void *owner = SYSCALLS_LOCK_OWNER(request), *at = 0;
	u64 from = 0, to = 0;
	u8 type = 0;
	SYSCALLS_LOCK_TYPE(type, request);
	READ(from, request, file_lock, fl_start);
	READ(to, request, file_lock, fl_end);
	bpf_probe_read_kernel(&at, sizeof(at), list);
#pragma clang loop unroll(disable)
	for (int i = 0; i < SYSCALLS_LOCKS; i++) {
		void *lock = SYSCALLS_LOCK_AT(at);
		u64 its_from = 0, its_to = 0;
		u8 its_type = 0;
		if (!at || at == list)
			break;
		SYSCALLS_LOCK_TYPE(its_type, lock);
		READ(its_from, lock, file_lock, fl_start);
		READ(its_to, lock, file_lock, fl_end);
		if ((type == SYSCALLS_LOCK_WRITES || its_type == SYSCALLS_LOCK_WRITES) && its_from <= to && from <= its_to &&
		    SYSCALLS_LOCK_OWNER(lock) != owner)
			return lock;
		at = SYSCALLS_LOCK_NEXT(lock);
	}
	return request;
}

static __always_inline void *syscalls_flocks(void *inode)
{
	return (void *)ADDR(PTR(inode, inode, i_flctx), file_lock_context, flc_flock);
}

static __always_inline void *syscalls_posix_locks(void *inode)
{
	return (void *)ADDR(PTR(inode, inode, i_flctx), file_lock_context, flc_posix);
}

static __always_inline int syscalls_on_lock(struct bpf_raw_tracepoint_args *ctx, void *(*locks)(void *inode))
{
	struct syscalls_holder h = {};
	void *task = current_task(), *request = (void *)ctx->args[1];
	int result = ctx->args[2];
	u32 flags = 0, tid = 0, number = 0;
	if (result != SYSCALLS_MUST_WAIT && result != SYSCALLS_REFUSED)
		return 0;
	LOAD(flags, task, task_struct, flags);
	if (flags & PF_KTHREAD)
		return 0;
	LOAD(tid, task, task_struct, pid);
	if (over_share(uid_of(task), SHARE_HOLDERS, SYSCALLS_HOLDERS_EACH_NS, SYSCALLS_HOLDERS_MOST)) {
		if (result == SYSCALLS_MUST_WAIT)
			lose(LOST_syscalls_shares);
		return 0;
	}
	void *lock = result == SYSCALLS_MUST_WAIT ? syscalls_blocker(request)
						  : syscalls_conflict(locks((void *)ctx->args[0]), request);
	SYSCALLS_LOCK_PID(number, lock);
	if (lock == request || (int)number <= 0)
		return 0;	/* another host's lock (NFS) */
	h.pid = UNKNOWN32;
	void *holder = syscalls_task_of(task, number, SYSCALLS_BY_TGID);
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
	if (result == SYSCALLS_REFUSED) {
		void *name = PTR(PTR(SYSCALLS_LOCK_FILE(request), file, dentry), dentry, name);
		bpf_probe_read_kernel_str(h.file, sizeof(h.file), name);
		h.refused_ns = bpf_ktime_get_boot_ns();
	} else {
		CALL_REGS(regs, task);
		h.regs = call_hash(regs);
	}
	if (syscalls_holders.update(&tid, &h))
		lose(LOST_syscalls_events);
	return 0;
}

int syscalls_on_flock(struct bpf_raw_tracepoint_args *ctx)
{
	return syscalls_on_lock(ctx, syscalls_flocks);
}

int syscalls_on_posix(struct bpf_raw_tracepoint_args *ctx)
{
	return syscalls_on_lock(ctx, syscalls_posix_locks);
}

/* The holder of the lock that the thread's call waited for, or that it was refused just before it slept; if any. */
static __always_inline void syscalls_name_holder(struct syscalls_event *e, struct syscalls_thread *t, u32 tid)
{
	struct syscalls_holder *h = syscalls_holders.lookup(&tid);
	bool sleeps = t->now.kind == SYSCALLS_WAITING && !t->now.inode_type;
	bool refused = h && h->refused_ns && sleeps && t->call_ns - h->refused_ns < SYSCALLS_RETRY_NS;
	bool its = refused || (h && !h->refused_ns && h->regs == t->call_regs);
	e->holder_pid = its ? h->pid : UNKNOWN32;
	e->holder_start_ns = its ? h->start_ns : UNKNOWN64;
	if (its)
		__builtin_memcpy(e->holder_comm, h->comm, sizeof(e->holder_comm));
	else
		__builtin_memset(e->holder_comm, 0, sizeof(e->holder_comm));
	if (refused)
		__builtin_memcpy(e->fd_name, h->file, sizeof(e->fd_name));
}
