/* Time in system calls. Kernel 5.8 (ring buffer, boot clock). Driven by agent/probes/syscalls.py.
 *
 * Always: the time a thread is switched out inside a call (sched_switch), with run-queue wait (from sched_wakeup) apart. A system
 * call tracepoint would put every call of every process on the slow path; sched_switch costs nothing to calls that do not block.
 * On demand: sys_enter and sys_exit, for sampling windows or full timing.
 *
 * Which blocks belong to one call? A thread's TIF_NEED_FPU_LOAD is set when it is switched in again and cleared on its return to user
 * mode, so a switch-out that finds it clear is the first since the thread was in user mode: the call before it has ended.
 * The bit's number differs between kernels and is measured at start (control of syscalls_tune, see agent/probes/syscalls.py).
 * The kernel's own use of the FPU within a call sets it too early; other user registers than before tell most of those calls apart.
 *
 * A 32-bit program's calls have numbers of their own: 512 is added to them here. */

#ifndef SYSCALLS_SLOW_NS
#define SYSCALLS_SLOW_NS 10000000
#endif
#ifndef SYSCALLS_WAIT_NS
#define SYSCALLS_WAIT_NS 1000000
#endif
#define SYSCALLS_PLACES 64	/* a power of two */
#ifndef SYSCALLS_CPUS
#define SYSCALLS_CPUS 1
#endif
#ifndef SYSCALLS_THREADS
#define SYSCALLS_THREADS 32768
#endif

enum { SYSCALLS_ALL, SYSCALLS_SAMPLED, SYSCALLS_BLOCKED };	/* order of the tables' `basis` */
enum { SYSCALLS_SLOW, SYSCALLS_WAITING };			/* order of `kind` */
/* What a blocking call is, by number; agent/probes/syscalls.py fills the table. Until then nothing is reported. */
enum { SYSCALLS_UNSET, SYSCALLS_IS_SLOW, SYSCALLS_IS_WAITING, SYSCALLS_BY_FD, SYSCALLS_WRITES_FD, SYSCALLS_POLLS };
enum { SYSCALLS_FD_NONE, SYSCALLS_FD_FILE, SYSCALLS_FD_DIR, SYSCALLS_FD_BLOCK, SYSCALLS_FD_CHAR, SYSCALLS_FD_PIPE, SYSCALLS_FD_SOCKET,
       SYSCALLS_FD_ANON };

struct syscalls_tune {
	u64 flag_mask;		/* thread_info.flags bit that says: not back in user mode since the last switch-in */
	u64 full;		/* sys_exit reports slow calls, sched_switch does not */
	u64 calibrate_tid;
	u64 calibrate_nr;	/* write */
	u64 flags_first;	/* calibration: flags seen set at a first block (or-ed) */
	u64 flags_again;	/* and at every later block of the same call (and-ed) */
};
BPF_F_TABLE("array", u32, struct syscalls_tune, syscalls_tune, 1, BPF_F_MMAPABLE);
#define SYSCALLS_COMPAT 512
#define SYSCALLS_TS_COMPAT 2		/* in thread_info.status of x86: within a 32-bit system call */
BPF_F_TABLE("array", u32, u64, syscalls_class, 1024, BPF_F_MMAPABLE);
BPF_TABLE("hash", u32, u64, syscalls_watched, 1024);	/* processes whose every wait is wanted: tgid */

struct syscalls_key {
	u32 pid;
	u16 nr;
	u8 basis;
	u8 kind;
	u16 peer_port;
	u16 pad;
	u32 pad2;
	u8 peer_addr[16];
};

struct syscalls_value {
	struct proc proc;
	u64 count;
	u64 errors;
	u64 sum_ns;
	u64 max_ns;
	u64 run_queue_ns;
	u32 hist[64];
};
BPF_TABLE("hash", struct syscalls_key, struct syscalls_value, syscalls_a, 8192);
BPF_TABLE("hash", struct syscalls_key, struct syscalls_value, syscalls_b, 8192);
BPF_TABLE("array", u32, struct syscalls_value, syscalls_zero, 1);	/* what a new element starts from */

struct syscalls_event {
	u64 t_ns;		/* end of the call: its last switch-in, or sys_exit */
	struct proc proc;
	u64 duration_ns;
	u64 blocked_ns;
	u64 run_queue_ns;
	u64 ret;
	u64 goroutine;
	u64 sock_id;
	u64 inode_type;		/* SYSCALLS_FD_* */
	u32 nr;
	u32 fd;
	u8 peer_addr[16];
	char fd_name[16];	/* of anonymous inodes: [eventfd] */
	u16 peer_port;
	u8 kind;
	u8 basis;
	u8 goes_on;		/* of a pending one: the thread is off the CPU again, in the same call */
	u8 pad[3];
};
BPF_RINGBUF_OUTPUT(syscalls_events, 64);
BPF_TABLE("hash", u32, struct syscalls_event, syscalls_pending, 1024);	/* slow calls that may go on, by tid */

struct syscalls_thread {
	u64 off_ns;		/* switched out at, 0 while running or not in a call */
	u64 wake_ns;
	u64 call_ns;		/* first block of the current call began */
	u64 call_regs;		/* its user registers, hashed: they stay as they are within a call */
	u64 blocked_ns;		/* in the current call */
	u64 run_queue_ns;
	u64 enter_ns;		/* of the timed call that the thread was in when it left its processor */
	u64 sock_id;
	u64 r14;		/* Go: the goroutine that blocks */
	u32 nr;
	u32 fd;
	u32 enter_nr;
	u16 peer_port;
	u8 kind;
	u8 inode_type;
	u8 pending;
	u8 pad[7];
	u8 peer_addr[16];
};
BPF_TABLE("hash", u32, struct syscalls_thread, syscalls_threads, SYSCALLS_THREADS);

static __always_inline struct syscalls_thread *syscalls_thread_of(u32 tid)
{
	struct syscalls_thread *t = syscalls_threads.lookup(&tid);
	if (!t) {
		struct syscalls_thread none = {};
		syscalls_threads.insert(&tid, &none);
		t = syscalls_threads.lookup(&tid);
		if (!t)
			lose(LOST_syscalls_events);
	}
	return t;
}

/* The timed call that this processor's current thread is in; enter_ns 0: none. sched_switch keeps it true, so that sys_enter and
 * sys_exit need no look-up by thread. One cache line a processor. */
struct syscalls_open {
	u64 enter_ns;
	u32 nr;
	u32 pad[13];
};
BPF_TABLE("array", u32, struct syscalls_open, syscalls_open, SYSCALLS_CPUS);

/* What timed calls add up to, by processor, slot and place: written by that processor alone, hence no atomics. A place that two keys
 * want goes to syscalls_a or _b and is taken over. The agent reads them with these. */
struct syscalls_sum {
	struct syscalls_key key;
	struct syscalls_value value;
};
BPF_F_TABLE("array", u32, struct syscalls_sum, syscalls_sums, SYSCALLS_CPUS * 2 * SYSCALLS_PLACES, BPF_F_MMAPABLE);

static __always_inline struct syscalls_tune *syscalls_get_tune(void)
{
	u32 zero = 0;
	return syscalls_tune.lookup(&zero);
}

/* The calling thread's user registers. */
static __always_inline struct pt_regs *syscalls_regs(void *task)
{
#if FUNC_task_pt_regs
	return (struct pt_regs *)bpf_task_pt_regs((void *)bpf_get_current_task_btf());
#else
	return (struct pt_regs *)((char *)PTR(task, task_struct, stack) + 16384) - 1;
#endif
}

/* Whether `task` is within a 32-bit program's call: not at the end of an execve, which answers for the new program. */
static __always_inline bool syscalls_compat(void *task)
{
	u32 status = 0;
#if HAS_thread_info__status
	GET(status, task, thread_info, status);
#endif
	return status & SYSCALLS_TS_COMPAT;
}

/* The same of the current task, on the path of every timed call: a load that the verifier checks, instead of a helper's copy. */
static __always_inline bool syscalls_current_compat(void)
{
#if !HAS_thread_info__status
	return 0;
#elif FUNC_get_current_task_btf
	return *(u32 *)ADDR(bpf_get_current_task_btf(), thread_info, status) & SYSCALLS_TS_COMPAT;
#else
	return syscalls_compat((void *)bpf_get_current_task());
#endif
}

static __always_inline u64 syscalls_hash(struct pt_regs *regs)
{
	unsigned long words[] = {regs->ip, regs->sp, regs->di, regs->si, regs->dx, regs->r10, regs->bx, regs->bp, regs->r12, regs->r13, regs->r14, regs->r15};
	u64 hash = regs->orig_ax;
#pragma unroll
	for (int i = 0; i < 12; i++)
		hash = (hash << 7 | hash >> 57) ^ words[i];
	return hash;
}

/* What fd is, and of a socket whom it talks to. */
static __always_inline void syscalls_look_at(struct syscalls_thread *t, void *task, u32 fd)
{
	u32 max = 0;
	u16 mode = 0;
	t->inode_type = SYSCALLS_FD_NONE;
	void *fdt = PTR(PTR(task, task_struct, files), files_struct, fdt);
	if (!fdt)
		return;
	GET(max, fdt, fdtable, max_fds);
	if (fd >= max)
		return;
	void **array = PTR(fdt, fdtable, fd);
	void *file = 0;
	bpf_probe_read_kernel(&file, sizeof(file), &array[fd]);
	if (!file)
		return;
	void *inode = PTR(file, file, f_inode);
	GET(mode, inode, inode, i_mode);
	switch (mode & 0170000) {
	case 0100000: t->inode_type = SYSCALLS_FD_FILE; return;
	case 0040000: t->inode_type = SYSCALLS_FD_DIR; return;
	case 0060000: t->inode_type = SYSCALLS_FD_BLOCK; return;
	case 0020000: t->inode_type = SYSCALLS_FD_CHAR; return;
	case 0010000: t->inode_type = SYSCALLS_FD_PIPE; return;
	case 0: t->inode_type = SYSCALLS_FD_ANON; return;
	case 0140000: break;
	default: return;
	}
	t->inode_type = SYSCALLS_FD_SOCKET;
	void *sk = PTR(PTR(file, file, private_data), socket, sk);
	u16 family = 0, port = 0;
	GET(family, sk, sock_common, skc_family);
	GET(port, sk, sock_common, skc_dport);
	if (family == 2) {
		GET(*(u32 *)(t->peer_addr + 12), sk, sock_common, skc_daddr);
		t->peer_addr[10] = t->peer_addr[11] = 0xff;
	} else if (family == 10) {
		bpf_probe_read_kernel(t->peer_addr, 16, ADDR(sk, sock_common, skc_v6_daddr));
	} else {
		return;
	}
	t->peer_port = __builtin_bswap16(port);
	if (!t->peer_port)
		__builtin_memset(t->peer_addr, 0, 16);
	GET(t->sock_id, sk, sock_common, skc_cookie);
}

/* Of the current thread's call, with its first two arguments. */
static __always_inline void syscalls_classify(struct syscalls_thread *t, void *task, u32 nr, u64 arg1, u64 arg2)
{
	u32 fd = arg1;
	u64 *class = syscalls_class.lookup(&nr);
	u64 is = class ? *class : SYSCALLS_IS_SLOW;	/* numbers beyond the table */
	t->peer_port = 0;
	t->sock_id = 0;
	__builtin_memset(t->peer_addr, 0, 16);
	t->nr = nr;
	t->kind = is == SYSCALLS_IS_SLOW || is == SYSCALLS_BY_FD || is == SYSCALLS_WRITES_FD ? SYSCALLS_SLOW : SYSCALLS_WAITING;
	t->inode_type = SYSCALLS_FD_NONE;
	if (is < SYSCALLS_BY_FD)
		return;
	if (is == SYSCALLS_POLLS && (arg2 != 1 || bpf_probe_read_user(&fd, sizeof(fd), (void *)arg1)))
		return;		/* of one descriptor, as a read with a time-out does: as good as a read */
	t->fd = fd;
	syscalls_look_at(t, task, fd);
	if (is == SYSCALLS_BY_FD && t->inode_type != SYSCALLS_FD_FILE && t->inode_type != SYSCALLS_FD_DIR && t->inode_type != SYSCALLS_FD_BLOCK)
		t->kind = SYSCALLS_WAITING;
}

/* The element of this key in the map that is written now, made where it is missing. */
static __always_inline struct syscalls_value *syscalls_element(void *task, struct syscalls_key *k, u32 slot)
{
	struct syscalls_value *v = slot ? syscalls_b.lookup(k) : syscalls_a.lookup(k);
	if (v)
		return v;
	u32 zero = 0;
	struct syscalls_value *none = syscalls_zero.lookup(&zero);
	if (!none)
		return 0;
	if (slot) {
		syscalls_b.insert(k, none);
		v = syscalls_b.lookup(k);
	} else {
		syscalls_a.insert(k, none);
		v = syscalls_a.lookup(k);
	}
	if (!v) {
		lose(LOST_syscalls_a);
		return 0;
	}
	fill_proc(&v->proc, task);
	v->proc.tid = UNKNOWN32;
	return v;
}

static __always_inline void syscalls_count(void *task, u32 tgid, struct syscalls_thread *t, u64 ns, u64 run_queue_ns)
{
	struct syscalls_key k = {.pid = tgid, .nr = t->nr, .basis = SYSCALLS_BLOCKED, .kind = t->kind, .peer_port = t->peer_port};
	struct control *c = get_control();
	__builtin_memcpy(k.peer_addr, t->peer_addr, 16);
	struct syscalls_value *v = syscalls_element(task, &k, c ? c->slot : 0);
	if (!v)
		return;
	__sync_fetch_and_add(&v->count, 1);
	__sync_fetch_and_add(&v->sum_ns, ns);
	if (run_queue_ns)
		__sync_fetch_and_add(&v->run_queue_ns, run_queue_ns);
	if (ns > v->max_ns)
		v->max_ns = ns;
	__sync_fetch_and_add(&v->hist[log2_bucket(ns)], 1);
}

static __always_inline void syscalls_fill(struct syscalls_event *e, void *task, struct syscalls_thread *t, u64 now)
{
	fill_proc(&e->proc, task);
	e->t_ns = now;
	e->blocked_ns = t->blocked_ns;
	e->run_queue_ns = t->run_queue_ns;
	e->ret = e->goroutine = UNKNOWN64;
	e->sock_id = t->sock_id ? t->sock_id : UNKNOWN64;
	e->inode_type = t->inode_type;
	e->nr = t->nr;
	e->fd = t->inode_type ? t->fd : UNKNOWN32;
	__builtin_memcpy(e->peer_addr, t->peer_addr, 16);
	e->peer_port = t->peer_port;
	e->kind = t->kind;
	if (t->inode_type == SYSCALLS_FD_ANON) {
		void **array = PTR(PTR(PTR(task, task_struct, files), files_struct, fdt), fdtable, fd);
		void *file = 0;
		bpf_probe_read_kernel(&file, sizeof(file), &array[t->fd & 0xfffff]);
		void *dentry = PTR(file, file, dentry);
		void *name = PTR(dentry, dentry, name);
		bpf_probe_read_kernel_str(e->fd_name, sizeof(e->fd_name), name);
	}
}

static __always_inline void syscalls_end(struct syscalls_thread *t, u32 tid)
{
	t->call_ns = 0;
	if (!t->pending)
		return;
	t->pending = 0;
	struct syscalls_event *e = syscalls_pending.lookup(&tid);
	if (!e)
		return;
	struct syscalls_event *out = syscalls_events.ringbuf_reserve(sizeof(*out));
	if (out)
		__builtin_memcpy(out, e, sizeof(*out));
	long taken = syscalls_pending.delete(&tid);	/* by the agent, first */
	if (!out) {
		if (!taken)
			lose(LOST_syscalls_events);
	} else if (taken) {
		syscalls_events.ringbuf_discard(out, QUIET);
	} else {
		syscalls_events.ringbuf_submit(out, QUIET);
	}
}

/* The pending call goes on: the agent is to leave it alone. */
static __always_inline void syscalls_hold(u32 tid)
{
	struct syscalls_event *e = syscalls_pending.lookup(&tid);
	if (e)
		e->goes_on = 1;
}

/* The timed call of the thread that leaves this processor goes with it. */
static __always_inline void syscalls_put_away(void *task, u32 flags)
{
	u32 cpu = bpf_get_smp_processor_id(), tid = 0;
	struct syscalls_open *o = syscalls_open.lookup(&cpu);
	struct control *c = get_control();
	if (!o || !c || !o->enter_ns)
		return;
	u64 enter_ns = o->enter_ns;
	o->enter_ns = 0;
	if (enter_ns < c->sample_from_ns || flags & PF_EXITING)
		return;
	GET(tid, task, task_struct, pid);
	struct syscalls_thread *t = syscalls_thread_of(tid);
	if (!t)
		return;
	t->enter_ns = enter_ns;
	t->enter_nr = o->nr;
}

/* ... and comes back with it. */
static __always_inline void syscalls_take_up(struct syscalls_thread *t)
{
	u32 cpu = bpf_get_smp_processor_id();
	struct syscalls_open *o = syscalls_open.lookup(&cpu);
	if (o) {
		o->nr = t->enter_nr;
		o->enter_ns = t->enter_ns;
	}
	t->enter_ns = 0;
}

/* `task` leaves the CPU. It is the current one. */
static __always_inline void syscalls_out(void *task, bool preempt, u64 now)
{
	u32 flags = 0, tid = 0, state = 0;
	unsigned long ti = 0;
	struct syscalls_tune *tune = syscalls_get_tune();
	GET(flags, task, task_struct, flags);
	syscalls_put_away(task, flags);
	if (!tune || flags & (PF_KTHREAD | PF_IO_WORKER | PF_EXITING))
		return;		/* an exiting thread's element is gone, and nobody would delete another */
	GET(tid, task, task_struct, pid);
	GET(ti, task, thread_info, flags);
	struct syscalls_thread *t = syscalls_threads.lookup(&tid);
	bool first = !(ti & tune->flag_mask);
	if (t) {
		t->off_ns = 0;
		if (first)
			syscalls_end(t, tid);
		else if (t->pending)
			syscalls_hold(tid);
	}
#if HAS_task_struct____state
	GET(state, task, task_struct, __state);
#else
	GET(state, task, task_struct, state);
#endif
	if (preempt || !state)
		return;
	struct pt_regs regs = {};
	bpf_probe_read_kernel(&regs, sizeof(regs), syscalls_regs(task));
	if ((long)regs.ax != -38)	/* -ENOSYS stands there from entry to return: else a page fault or a new thread */
		return;
	bool compat = syscalls_compat(task);
	u32 nr = regs.orig_ax + compat * SYSCALLS_COMPAT;
	u64 hash = syscalls_hash(&regs);
	if (tid == tune->calibrate_tid) {
		if (nr == tune->calibrate_nr && t && t->nr == nr)
			tune->flags_again &= ti;
		else if (nr != tune->calibrate_nr)
			tune->flags_first |= ti;
	}
	if (!t)
		t = syscalls_thread_of(tid);
	if (!t)
		return;
	if (t->call_ns && t->call_regs != hash)
		syscalls_end(t, tid);
	if (!t->call_ns) {
		syscalls_classify(t, task, nr, compat ? regs.bx : regs.di, compat ? regs.cx : regs.si);
		t->call_ns = now;
		t->call_regs = hash;
		t->blocked_ns = t->run_queue_ns = 0;
	}
#ifdef LIMITER_OPEN
	t->r14 = regs.r14;
#endif
	t->wake_ns = 0;
	t->off_ns = now;
}

/* `task` gets the CPU; it is not current yet. */
static __always_inline void syscalls_in(void *task, u64 now)
{
	u32 tid = 0, tgid = 0;
	GET(tid, task, task_struct, pid);
	struct syscalls_thread *t = syscalls_threads.lookup(&tid);
	struct syscalls_tune *tune = syscalls_get_tune();
	if (t && t->enter_ns)
		syscalls_take_up(t);
	if (!t || !t->off_ns || !tune)
		return;
	u64 total = now - t->off_ns, run_queue = t->wake_ns > t->off_ns ? now - t->wake_ns : 0;
	t->off_ns = 0;
	t->blocked_ns += total - run_queue;
	t->run_queue_ns += run_queue;
	GET(tgid, task, task_struct, tgid);
	syscalls_count(task, tgid, t, total - run_queue, run_queue);
	if (tune->full && t->kind == SYSCALLS_SLOW)
		return;
	u64 goroutine = UNKNOWN64;
	u64 need = SYSCALLS_SLOW_NS;
	if (t->kind == SYSCALLS_WAITING) {
		bool wanted = false;
		need = SYSCALLS_WAIT_NS;
		if (now - t->call_ns < need)
			return;
#ifdef LIMITER_OPEN
		u64 *open = limiter_open.lookup(&tid);
		if (open && *open == t->r14) {
			goroutine = *open;
			wanted = true;
		}
#endif
		if (!wanted && !syscalls_watched.lookup(&tgid))
			return;
	}
	if (now - t->call_ns < need)
		return;
	if (t->pending && !syscalls_pending.lookup(&tid)) {	/* the agent took what there was: the rest counts as a call of its own */
		t->call_ns = now - total;
		t->blocked_ns = total - run_queue;
		t->run_queue_ns = run_queue;
	}
	struct syscalls_event e = {};
	syscalls_fill(&e, task, t, now);
	e.duration_ns = now - t->call_ns;
	e.basis = SYSCALLS_BLOCKED;
	e.goroutine = goroutine;
	if (syscalls_pending.update(&tid, &e))
		lose(LOST_syscalls_events);
	else
		t->pending = 1;
}

int syscalls_on_switch(struct bpf_raw_tracepoint_args *ctx)
{
	u64 now = bpf_ktime_get_boot_ns();
	syscalls_out((void *)ctx->args[1], ctx->args[0], now);
	syscalls_in((void *)ctx->args[2], now);
	return 0;
}

int syscalls_on_wakeup(struct bpf_raw_tracepoint_args *ctx)
{
	u32 tid = 0;
	GET(tid, (void *)ctx->args[0], task_struct, pid);
	struct syscalls_thread *t = syscalls_threads.lookup(&tid);
	if (t && t->off_ns && !t->wake_ns)
		t->wake_ns = bpf_ktime_get_boot_ns();
	return 0;
}

int syscalls_on_exit(struct bpf_raw_tracepoint_args *ctx)
{
	u32 tid = 0;
	GET(tid, (void *)ctx->args[0], task_struct, pid);
	struct syscalls_thread *t = syscalls_threads.lookup(&tid);
	if (!t)
		return 0;
	syscalls_end(t, tid);
	syscalls_threads.delete(&tid);
	return 0;
}

int syscalls_on_sys_enter(struct bpf_raw_tracepoint_args *ctx)
{
	u32 cpu = bpf_get_smp_processor_id();
	struct syscalls_open *o = syscalls_open.lookup(&cpu);
	if (!o) {
		lose(LOST_syscalls_a);
		return 0;
	}
	o->nr = ctx->args[1] + syscalls_current_compat() * SYSCALLS_COMPAT;
	o->enter_ns = bpf_ktime_get_boot_ns();
	return 0;
}

/* Takes a place over for another key. */
static __always_inline void syscalls_claim(struct syscalls_sum *s, u32 slot)
{
	void *task = (void *)bpf_get_current_task();
	if (s->value.count) {
		struct syscalls_value *v = syscalls_element(task, &s->key, slot);
		if (!v)
			return;
		v->proc = s->value.proc;
		__sync_fetch_and_add(&v->count, s->value.count);
		__sync_fetch_and_add(&v->errors, s->value.errors);
		__sync_fetch_and_add(&v->sum_ns, s->value.sum_ns);
		if (s->value.max_ns > v->max_ns)
			v->max_ns = s->value.max_ns;
#pragma clang loop unroll(disable)
		for (u32 i = 0; i < 64; i++)
			if (s->value.hist[i])
				__sync_fetch_and_add(&v->hist[i], s->value.hist[i]);
	}
	__builtin_memset(s, 0, sizeof(*s));
	fill_proc(&s->value.proc, task);
	s->value.proc.tid = UNKNOWN32;
}

/* A slow call in full mode: an event. */
static __always_inline void syscalls_slow(struct bpf_raw_tracepoint_args *ctx, u32 nr, u64 enter_ns, u64 now)
{
	struct syscalls_thread *t = syscalls_thread_of(bpf_get_current_pid_tgid());
	void *task = (void *)bpf_get_current_task();
	struct pt_regs *regs = (struct pt_regs *)ctx->args[0];
	unsigned long first = 0;
	if (!t)
		return;
	if (!t->call_ns || t->call_ns < enter_ns)	/* what sched_switch saw belongs to an earlier call */
		t->blocked_ns = t->run_queue_ns = 0;
	bpf_probe_read_kernel(&first, sizeof(first), nr < SYSCALLS_COMPAT ? &regs->di : &regs->bx);
	syscalls_classify(t, task, nr, first, 0);
	if (t->kind == SYSCALLS_WAITING)
		return;
	struct syscalls_event e = {};
	syscalls_fill(&e, task, t, now);
	e.duration_ns = now - enter_ns;
	e.basis = SYSCALLS_ALL;
	e.ret = ctx->args[1];
	if (syscalls_events.ringbuf_output(&e, sizeof(e), QUIET))
		lose(LOST_syscalls_events);
}

int syscalls_on_sys_exit(struct bpf_raw_tracepoint_args *ctx)
{
	u32 cpu = bpf_get_smp_processor_id();
	struct syscalls_open *o = syscalls_open.lookup(&cpu);
	struct control *c = get_control();
	if (!o || !c || !o->enter_ns)
		return 0;
	u64 enter_ns = o->enter_ns, now = bpf_ktime_get_boot_ns(), ns = now - enter_ns;
	u32 tgid = bpf_get_current_pid_tgid() >> 32, nr = o->nr, slot = c->slot & 1;
	bool full = !c->sample_from_ns;
	long ret = ctx->args[1];
	o->enter_ns = 0;
	if (enter_ns < c->sample_from_ns)
		return 0;	/* left over from an earlier window */
	struct syscalls_key key = {.pid = tgid, .nr = nr, .basis = full ? SYSCALLS_ALL : SYSCALLS_SAMPLED, .kind = UNKNOWN8};
	u32 place = (cpu * 2 + slot) * SYSCALLS_PLACES + ((tgid * 0x9e3779b1u + nr * 0x85ebca6bu) >> 26);
	struct syscalls_sum *s = syscalls_sums.lookup(&place);
	if (!s)
		return 0;
	if (*(u64 *)&s->key != *(u64 *)&key || !s->value.count) {
		syscalls_claim(s, slot);
		s->key = key;
	}
	s->value.count++;
	s->value.sum_ns += ns;
	if (ns > s->value.max_ns)
		s->value.max_ns = ns;
	if (ret < 0 && ret >= -4095)
		s->value.errors++;
	s->value.hist[log2_bucket(ns)]++;
	if (full && ns >= SYSCALLS_SLOW_NS)
		syscalls_slow(ctx, nr, enter_ns, now);
	return 0;
}
