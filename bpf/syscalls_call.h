/* State of a system call and of its thread: tables, records, sums by process and call. First in the family of
 * bpf/syscalls.bpf.c. 512 is added to the numbers of 32-bit programs' calls. */

#ifndef SYSCALLS_SLOW_NS
#define SYSCALLS_SLOW_NS 10000000
#endif
#ifndef SYSCALLS_WAIT_NS
#define SYSCALLS_WAIT_NS 1000000
#endif
#define SYSCALLS_WAKERS 4	/* threads that waited for each other, of which the last waits are reported */
#define SYSCALLS_LONG_NS 50000000	/* waits of this length are remembered, one a thread */
#define SYSCALLS_SLOW_EACH_NS 2000000	/* of a user's slow calls */
#define SYSCALLS_SLOW_MOST 256
#ifndef SYSCALLS_THREADS
#define SYSCALLS_THREADS 32768
#endif

#define SYSCALLS_COMPAT 512
#define SYSCALLS_FAULT 1023		/* in place of a call's number: the thread waits in a page fault */
#define SYSCALLS_UNINTERRUPTIBLE 2	/* of a thread's state */

enum { SYSCALLS_ALL, SYSCALLS_SAMPLED, SYSCALLS_BLOCKED, SYSCALLS_SO_FAR };	/* order of the tables' `basis` */
enum { SYSCALLS_SLOW, SYSCALLS_WAITING };			/* order of `kind` */

struct syscalls_tune {
	u64 flag_mask;		/* bit of thread_info.flags: not in user mode since the last switch-in */
	u64 full;		/* sys_exit reports slow calls, sched_switch does not */
	u64 calibrate_tid;
	u64 calibrate_nr;	/* write */
	u64 flags_first;	/* calibration: flags seen set at a first block (or-ed) */
	u64 flags_again;	/* and at every later block of the same call (and-ed) */
};
BPF_F_TABLE("array", u32, struct syscalls_tune, syscalls_tune, 1, BPF_F_MMAPABLE);

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
	u64 count;
	u64 errors;
	u64 sum_ns;
	u64 max_ns;
	u64 run_queue_ns;
	struct proc proc;
	u32 hist[64];
};
BPF_TABLE("hash", struct syscalls_key, struct syscalls_value, syscalls_a, 8192);
BPF_TABLE("hash", struct syscalls_key, struct syscalls_value, syscalls_b, 8192);
BPF_TABLE("array", u32, struct syscalls_value, syscalls_zero, 1);	/* initial value */

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
	u64 holder_start_ns;
	u64 written_bytes;
	u64 waker_awake_ns;
	u64 waker_cpu_ns;
	u32 nr;
	u32 fd;
	u32 holder_pid;
	u32 waker_pid;
	u32 waker_tid;
	u32 pad2;
	u8 peer_addr[16];
	char fd_name[32];	/* of files and directories; of anonymous inodes: [eventfd] */
	char holder_comm[16];
	char waker_comm[16];
	char device[16];
	u16 peer_port;
	u8 kind;
	u8 basis;
	u8 goes_on;		/* of a pending one: the thread is off the CPU again, in the same call */
	u8 frozen;		/* the file's file system was frozen when the call began to wait */
	u8 fuse;		/* a FUSE daemon's answer ended the wait */
	u8 pad;
};
#define SYSCALLS_PAGES 64
BPF_RINGBUF_OUTPUT(syscalls_events, SYSCALLS_PAGES);

static __always_inline u64 syscalls_events_flags(void)
{
	return wake_each(LOST_syscalls_events, RING_QUARTER(SYSCALLS_PAGES, struct syscalls_event));
}

/* What a call waits for, and who ended that. */
struct syscalls_wait {
	u64 sock_id;
	u64 waker_awake_ns;	/* how long ago the last long wait of the waker's thread ended, or the thread began */
	u64 waker_cpu_ns;	/* its CPU time since then */
	u32 nr;
	u32 fd;
	u32 waker_pid;		/* the process whose call woke it from the last long block of this call; UNKNOWN32: none */
	u32 waker_tid;
	char waker_comm[16];
	u8 peer_addr[16];
	u16 peer_port;
	u8 kind;
	u8 inode_type;
	u8 frozen;
	u8 fuse;
	u8 pad[2];
};

struct syscalls_thread {
	u64 off_ns;		/* switched out at; 0 while running or outside of a call */
	u64 wake_ns;
	u64 ready_ns;		/* outside of a blocking call: preempted or woken at; 0 while running */
	u64 call_ns;		/* first block of the current call began */
	u64 task;		/* its address */
	u64 call_regs;		/* hash of its user registers, which do not change within a call */
	u64 blocked_ns;		/* in the current call */
	u64 run_queue_ns;
	u64 enter_ns;		/* of the timed call in which the thread left its CPU */
	u64 goroutine;		/* Go: the blocking one */
	u64 wrote;		/* bytes, at the last switch-out within a call */
	u64 wrote_before;	/* ... in the call before this one */
	u64 dns_sk;		/* the socket, if its peer is a name server */
	struct syscalls_wait now;
	/* The last long wait, which is reported if the thread then ends a long wait of a watched process. */
	struct syscalls_wait last;
	struct proc last_proc;
	u64 last_from_ns;
	u64 last_to_ns;
	u64 last_cpu_ns;	/* CPU time of the thread up to its end */
	u32 tgid;
	u32 enter_nr;
	u8 pending;
	u8 last_reported;
	u8 pad[6];
};
BPF_TABLE("hash", u32, struct syscalls_thread, syscalls_threads, SYSCALLS_THREADS);
BPF_TABLE("array", u32, struct syscalls_thread, syscalls_fresh, 1);	/* initial value */

/* processes whose waits are reported: tgid -> the shortest, ns */
BPF_TABLE("hash", u32, u64, syscalls_watched, 1024);

static __always_inline struct syscalls_thread *syscalls_thread_of(u32 tid)
{
	struct syscalls_thread *t = syscalls_threads.lookup(&tid);
	if (!t) {
		u32 zero = 0;
		struct syscalls_thread *fresh = syscalls_fresh.lookup(&zero);	/* too large for the stack */
		if (fresh)
			syscalls_threads.insert(&tid, fresh);
		t = syscalls_threads.lookup(&tid);
		if (t)
			t->wrote = UNKNOWN64;
		else
			lose(LOST_syscalls_events);
	}
	return t;
}

/* When `task`, the current one, got its CPU back, if no program saw it: a kernel may run no program while a protected
 * task is current, and so hide the switch from it, and wake-ups meanwhile. The scheduler's own stamp is by the clock of
 * the run queue, which every switch sets. Between switches that clock lags by a tick at most, so this may be late by as
 * much. */
static __always_inline u64 syscalls_arrived(struct syscalls_thread *t, void *task, u64 now)
{
	u64 ran_ns = 0, least = t->wake_ns > t->off_ns ? t->wake_ns : t->off_ns;
#if HAS_task_struct__last_arrival && HAS_task_struct__cfs_rq
	u64 clock = 0, arrival = 0;
	GET(arrival, task, task_struct, last_arrival);
	GET(clock, PTR(PTR(task, task_struct, cfs_rq), cfs_rq, rq), rq, clock);
	ran_ns = clock > arrival ? clock - arrival : 0;
#endif
	return now > least + ran_ns ? now - ran_ns : least;
}

static __always_inline struct syscalls_tune *syscalls_get_tune(void)
{
	u32 zero = 0;
	return syscalls_tune.lookup(&zero);
}

/* Bytes that the task has dirtied, in files or directly on a device; LOAD reads the current task. */
#if HAS_task_struct__write_bytes
#define SYSCALLS_WROTE(by, task) ({ u64 _bytes = 0; by(_bytes, task, task_struct, write_bytes); _bytes; })
#else
#define SYSCALLS_WROTE(by, task) UNKNOWN64
#endif

/* When a thread began. */
static __always_inline u64 syscalls_begun(void *task)
{
	u64 ns = 0;
#if HAS_task_struct__start_boottime
	GET(ns, task, task_struct, start_boottime);
#else
	GET(ns, task, task_struct, real_start_time);
#endif
	return ns;
}

/* CPU time of a thread. */
static __always_inline u64 syscalls_cpu_of(void *task)
{
	u64 ns = 0;
	GET(ns, task, task_struct, sum_exec_runtime);
	return ns;
}

/* The element of this key in the map that is written now, created if missing. */
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
