/* Common to all probe families: reads by BTF offset, the drain slot, rings with loss counters, process identity.
 *
 * OFF_struct__field  byte offset of a field, found by name at any depth of the struct in the running kernel's BTF
 * HAS_struct__field  1 if the running kernel has that field, else 0
 * TP_name            number of arguments of raw tracepoint `name`, 0 if there is none
 * FUNC_name          1 if the kernel has helper bpf_name, else 0
 * KFUNC_name         type id of kernel function `name` in its BTF, 0 if there is none; KFUNC_BASE + this is its
 *                    number in a call
 * LOST_map           number of a ring or aggregation map in `lost`, which has LOST_COUNTERS
 * PIDNS_INUM         inode of the agent's PID namespace, if that is not the host's
 *
 * The loader finds these words in the sources and defines each; OFF_ words also come from GET(.., struct, field) and
 * the like. */
#pragma once
#include <linux/types.h>
#include <uapi/linux/ptrace.h>
#include "events.h"

#define KFUNC_BASE 0x40000000	/* agent/kernel/compiler.py */

#define READ(dst, ptr, s, f) bpf_probe_read_kernel(&(dst), sizeof(dst), (const char *)(ptr) + OFF_##s##__##f)
#define ADDR(ptr, s, f) ((const char *)(ptr) + OFF_##s##__##f)
#define PTR(ptr, s, f) ({ void *_p = 0; READ(_p, ptr, s, f); _p; })

/* Flags of a large hash map: from kernel 6.1 on, programs that trace may allocate its elements when they need them. */
#if HAS_bpf_htab__ma
#define ON_DEMAND BPF_F_NO_PREALLOC
#else
#define ON_DEMAND 0
#endif

#ifndef PIDNS_INUM
#define GET READ
#else
/* In a PID namespace (a container without the host's) the agent and the processes around it use that namespace's
 * numbers, so the programs do, too. A process outside of it keeps its host number, marked, and is unknown to the agent.
 */
#define PIDNS_OUTSIDE 0x40000000
#define PIDNS_DEPTH 4

static __always_inline u32 pidns_number(void *task, u32 global)
{
	void *pid = PTR(task, task_struct, thread_pid), *ns;
	u32 level = 0, inum, number;
	READ(level, pid, pid, level);
#pragma clang loop unroll(disable)	/* four copies of it in each GET exceed 512 bytes of stack (LLVM 14) */
	for (int i = 1; i <= PIDNS_DEPTH; i++) {
		const char *upid = ADDR(pid, pid, numbers) + i * 16;	/* struct upid: an int and a pointer */
		if (i > level)
			break;
		ns = PTR(upid, upid, ns);
		inum = number = 0;
		READ(inum, ns, pid_namespace, inum);
		READ(number, upid, upid, nr);
		if (inum == PIDNS_INUM)
			return number;
	}
	return global | PIDNS_OUTSIDE;
}

static __always_inline u32 pidns_tgid(void *task)
{
	u32 global = 0;
	READ(global, task, task_struct, tgid);
	return pidns_number(PTR(task, task_struct, group_leader), global);
}

static __always_inline u32 pidns_tid(void *task)
{
	u32 global = 0;
	READ(global, task, task_struct, pid);
	return pidns_number(task, global);
}

static __always_inline u64 pidns_current(void)
{
	void *task = (void *)bpf_get_current_task();
	return (u64)pidns_tgid(task) << 32 | pidns_tid(task);
}

#define bpf_get_current_pid_tgid pidns_current
#define IS_FIELD(s, f, name) (!__builtin_strcmp(#s "." #f, name))
#define GET(dst, ptr, s, f) ({								\
	if (IS_FIELD(s, f, "task_struct.tgid"))						\
		*(u32 *)&(dst) = pidns_tgid((void *)(ptr));				\
	else if (IS_FIELD(s, f, "task_struct.pid"))					\
		*(u32 *)&(dst) = pidns_tid((void *)(ptr));				\
	else										\
		READ(dst, ptr, s, f);							\
})
#endif

/* Of the current task, as returned by current_task(): a load that the verifier checks, instead of a helper's copy, if
 * the kernel knows the task's type (5.11). */
#if FUNC_get_current_task_btf
#define current_task() ((void *)bpf_get_current_task_btf())
#else
#define current_task() ((void *)bpf_get_current_task())
#endif
#if FUNC_get_current_task_btf && !defined(PIDNS_INUM)
#define LOAD(dst, ptr, s, f) ({ (dst) = *(typeof(dst) *)ADDR(ptr, s, f); })
#else
#define LOAD GET
#endif

#include "arch_x86.h"

/* Written by the agent through mmap. */
struct control {
	u32 slot;	/* which of two aggregation maps to write; after a flip, the other is read and emptied */
	u32 watch_tid;		/* a thread that sleeps on the cancel-on-set timer */
	u32 agent_pid;		/* tickscope's own process: not reported */
	u32 tls_depth;		/* of the tls family: threads inside a handshake */
	u64 sample_from_ns;	/* CLOCK_BOOTTIME start of the current window of full timing */
	u32 tcp_threads;	/* threads whose sockets the tls family records */
	u32 pad;
	u64 profile_until_ns;	/* end of the on-demand profile (bpf/profile.h), which also holds if the agent hangs */
	u32 profile_pids[8];	/* the processes of the profile */
};
BPF_F_TABLE("array", u32, struct control, control, 1, BPF_F_MMAPABLE);

static __always_inline struct control *get_control(void)
{
	u32 zero = 0;
	return control.lookup(&zero);
}

/* First in every program of a uprobe (the loader checks this). Such programs can be preempted while another thread runs
 * them on the same CPU. From Linux 6.13 on they would share one stack there (a76ab5731e32) and overwrite each other's
 * variables. A program that may make a tail call has its thread's stack. This tail call is never made: nothing runs at
 * address 0. */
BPF_TABLE("prog", u32, u32, no_programs, 1);

static __always_inline void on_own_stack(struct pt_regs *ctx)
{
	if (!reg_ip(ctx))
		no_programs.call(ctx, 0);
}

/* Records that could not be sent, by map: lose(LOST_mapname). The loader numbers the maps. */
BPF_F_TABLE("array", u32, u64, lost, LOST_COUNTERS, BPF_F_MMAPABLE);

static __always_inline void lose(u32 map)
{
	u64 *n = lost.lookup(&map);
	if (n)
		__sync_fetch_and_add(n, 1);
}

/* Any user can cause an unlimited number of events. A user's events are limited to a share: `most` at once, and one
 * more each `each_ns`. All users but root together have two shares, and so has root. Events beyond are not reported;
 * the caller counts them: lose(LOST_family_shares). Stored is the time until which a share is used up. Two CPUs that
 * take at the same instant may count as one. */
enum { SHARE_PROCESS, SHARE_SENDERS, SHARE_DNS, SHARE_DNS_CALLS, SHARE_DNS_GO_CALLS, SHARE_CLOCK, SHARE_HOLDERS, SHARE_SLOW, SHARE_CPU, SHARE_REDIS, SHARE_REDIS_PIECES, SHARE_STACKS, SHARE_ANSWERS,
       SHARE_CONNECTS, SHARE_CONNECTS_UNOWNED, SHARE_CLOSES, SHARE_CLOSES_UNOWNED, SHARE_RESETS, SHARE_RESETS_UNOWNED,
       SHARE_RETRANSMITS, SHARE_RETRANSMITS_UNOWNED, SHARE_SOCKETS, SHARE_RTT, SHARE_SERVED, SHARE_LISTENERS,
       SHARE_HANDSHAKES, SHARE_HANDSHAKES_OPEN, SHARE_HANDSHAKES_DONE, SHARE_TLS_THREADS, SHARE_TLS_PROCESSES,
       SHARE_TLS_READERS, SHARE_DECISIONS, SHARE_DECIDING, SHARE_WAITING, SHARE_KINDS };
struct share_key {
	u32 uid;
	u32 of;
};
BPF_TABLE("lru_hash", struct share_key, u64, shares, 4096);
BPF_TABLE("array", u32, u64, shares_together, 2 * SHARE_KINDS);	/* of all users but root, of root */

/* The uid of the process itself, whatever rights it has borrowed: a user who may signal it, or started it, is that user
 * or root. */
static __always_inline u32 uid_of(void *task)
{
	u32 uid = 0;
	READ(uid, PTR(task, task_struct, real_cred), cred, uid);
	return uid;
}

static __always_inline bool share_taken(u64 *until, u64 now, u64 each_ns, u64 room_ns, bool exact)
{
	u64 from = *until > now ? *until : now;
	if (from - now > room_ns)
		return false;
	if (exact && from != now)
		__sync_fetch_and_add(until, each_ns);
	else
		*until = from + each_ns;
	return true;
}

static __always_inline bool share_used_up(u32 uid, u32 of, u64 each_ns, u64 most, bool exact)
{
	struct share_key k = {.uid = uid, .of = of};
	u32 all = 2 * of + !uid;
	u64 now = bpf_ktime_get_boot_ns(), room_ns = (most - 1) * each_ns, *own = 0, *together = shares_together.lookup(&all);
	if (!together || *together > now + room_ns)
		return true;
	if (uid) {
		own = shares.lookup(&k);
		if (!own) {
			shares.update(&k, &now);
			own = shares.lookup(&k);
		}
		if (own && !share_taken(own, now, each_ns, room_ns, exact))
			return true;
	}
	return !share_taken(together, now, each_ns / 2, room_ns, exact);
}

static __always_inline bool over_share(u32 uid, u32 of, u64 each_ns, u64 most)
{
	return share_used_up(uid, of, each_ns, most, false);
}

/* The same for places: things that exist at one time, each of which is given back. `each_ns` is long: only what was
 * never given back comes back by itself. */
static __always_inline bool no_place(u32 uid, u32 of, u64 each_ns, u64 most)
{
	return share_used_up(uid, of, each_ns, most, true);
}

/* Returns what was taken, for shares of things that exist at one time. */
static __always_inline void give_share_back(u32 uid, u32 of, u64 each_ns)
{
	struct share_key k = {.uid = uid, .of = of};
	u32 all = 2 * of + !uid;
	u64 *own = shares.lookup(&k), *together = shares_together.lookup(&all);
	if (own && *own > each_ns)
		__sync_fetch_and_add(own, -each_ns);
	if (together && *together > each_ns / 2)
		__sync_fetch_and_add(together, -(each_ns / 2));
}

/* Flags for ringbuf_submit. Quiet by default: the agent drains on a timer, and a wake-up costs 50 times the record. (No
 * macros around map methods: BCC does not rewrite those inside macros.) */
#define QUIET BPF_RB_NO_WAKEUP
#define WAKE BPF_RB_FORCE_WAKEUP

/* The same for a ring that may fill up before the agent's next beat: the agent wakes up with each quarter of the ring
 * that was written. (BCC 0.26 has no bpf_ringbuf_query. If two CPUs count at the same instant, one may be lost, which
 * only delays the wake-up.) */
#define RING_QUARTER(pages, record) ((pages) * 1024 / (sizeof(record) + 8))
BPF_ARRAY(ring_records, u64, LOST_COUNTERS);
static __always_inline u64 wake_each(u32 map, u64 records)
{
	u64 *n = ring_records.lookup(&map);
	return n && !(++*n % records) ? WAKE : QUIET;
}

#define PF_KTHREAD 0x00200000
#define PF_EXITING 0x00000004
#define PF_IO_WORKER 0x00000010

static __always_inline u64 cgroup_of(void *task)
{
	u64 id = UNKNOWN64;
	void *kn = PTR(PTR(PTR(task, task_struct, cgroups), css_set, dfl_cgrp), cgroup, kn);
	if (kn)
		GET(id, kn, kernfs_node, id);
	return id;
}

/* Identity of any task, current or not. */
static __always_inline void fill_proc(struct proc *p, void *task)
{
	void *leader = PTR(task, task_struct, group_leader);
	GET(p->pid, task, task_struct, tgid);
	GET(p->tid, task, task_struct, pid);
#if HAS_task_struct__start_boottime
	GET(p->proc_start_ns, leader, task_struct, start_boottime);
#else
	GET(p->proc_start_ns, leader, task_struct, real_start_time);
#endif
	__builtin_memset(p->comm, 0, sizeof(p->comm));	/* the bytes after the name are not always zero (5.10) */
	bpf_probe_read_kernel_str(p->comm, sizeof(p->comm), ADDR(leader, task_struct, comm));
	p->cgroup_id = cgroup_of(task);
}

static __always_inline void no_proc(struct proc *p)
{
	__builtin_memset(p, 0, sizeof(*p));
	p->pid = p->tid = UNKNOWN32;
	p->proc_start_ns = p->cgroup_id = UNKNOWN64;
}

/* The struct file behind a task's descriptor, or 0. */
static __always_inline void *file_of(void *task, u32 fd)
{
	u32 max = 0;
	void *file = 0, *fdt = PTR(PTR(task, task_struct, files), files_struct, fdt);
	if (!fdt)
		return 0;
	GET(max, fdt, fdtable, max_fds);
	if (fd >= max)
		return 0;
	void **array = PTR(fdt, fdtable, fd);
	bpf_probe_read_kernel(&file, sizeof(file), &array[fd]);
	return file;
}

static __always_inline u16 mode_of(void *file)
{
	u16 mode = 0;
	GET(mode, PTR(file, file, f_inode), inode, i_mode);
	return mode;
}

/* The struct sock behind a file that is a socket. */
static __always_inline void *sock_of(void *file)
{
	return PTR(PTR(file, file, private_data), socket, sk);
}

static __always_inline u32 log2_bucket(u64 v)
{
	u32 i = 0;
	if (v >> 32) { i += 32; v >>= 32; }
	if (v >> 16) { i += 16; v >>= 16; }
	if (v >> 8) { i += 8; v >>= 8; }
	if (v >> 4) { i += 4; v >>= 4; }
	if (v >> 2) { i += 2; v >>= 2; }
	/* Through the stack: the verifier (seen on 5.10) follows impossible branches, and a sum with contradictory bounds
	 * spoils the pointer it is added to. */
	volatile u32 bucket = i + (v >> 1);
	return bucket & 63;
}
