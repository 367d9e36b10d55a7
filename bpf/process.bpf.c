/* Processes that are stopped, continued, and ended, and by whom. Raw tracepoints on rare events; kernel 5.8 (ring
 * buffer). Driven by agent/probes/process.py. A debugger that attaches makes the kernel send SIGSTOP; a cgroup is
 * frozen without any signal. */

#define PROCESS_STOPPED 0	/* in the order of the table's enum */
#define PROCESS_CONTINUED 1
#define PROCESS_KILLED 2
#define PROCESS_EXITED 3
#define PROCESS_OOM_KILLED 4
#define PROCESS_FROZEN 5
#define PROCESS_THAWED 6
#define PROCESS_TRACED 7

/* The relation of a signal's sender to its receiver, in the order of the table's enum. */
#define PROCESS_BY_KERNEL 0
#define PROCESS_BY_ITSELF 1
#define PROCESS_BY_PARENT 2	/* or a process that its parent started, or the first process */
#define PROCESS_BY_ANCESTOR 3
#define PROCESS_BY_TERMINAL 4	/* a process at the same terminal */
#define PROCESS_BY_OTHER 5
#define PROCESS_BY_ASKED 6	/* a process that had asked it to end before */
#define PROCESS_ANCESTORS 8

#define PROCESS_SIGPIPE 13
#define PROCESS_SIGCONT 18
#define PROCESS_SIGSTOP 19
/* HUP INT QUIT ILL ABRT BUS FPE KILL SEGV TERM XCPU SYS: the sender is kept until the process ends. */
#define PROCESS_ENDING (1u << 1 | 1u << 2 | 1u << 3 | 1u << 4 | 1u << 6 | 1u << 7 | 1u << 8 | 1u << 9 | 1u << 11 | 1u << 15 | 1u << 24 | 1u << 31)
#define PROCESS_ASKING (1u << 1 | 1u << 2 | 1u << 3 | 1u << 15)	/* HUP INT QUIT TERM */
#define PROCESS_STOPPING (7u << 20)	/* TSTP TTIN TTOU, which a program may handle itself */
#define PROCESS_CLD 0x30	/* SIGNAL_CLD_STOPPED, SIGNAL_CLD_CONTINUED: this signal continued it */
#define PROCESS_EACH_NS 8000000		/* of a user's processes */
#define PROCESS_MOST 256
#define PROCESS_SENDERS_EACH_NS 50000000	/* senders that are kept of them */
#define PROCESS_SENDERS_MOST 512
#define PROCESS_SHORT_NS 1000000000	/* shorter lives that ended by themselves are not reported: most of a shell's */

struct process_event {
	u64 t_ns;
	struct proc proc;
	u32 signal;
	u32 exit_code;
	u32 sender_pid;
	u32 uid;
	u32 parent_pid;
	u8 kind;
	u8 sender_is;
	u8 pad[2];
	char sender_comm[16];
};

struct process_sender {
	u32 signal;
	u32 pid;
	u32 is;
	u32 parent;	/* at the time of sending */
	char comm[16];
};

BPF_RINGBUF_OUTPUT(process_events, 32);	/* has room for all shares */
BPF_TABLE("lru_hash", u32, struct process_sender, process_senders, 4096);

static __always_inline u32 process_parent(void *task)
{
	u32 tgid = 0;
	GET(tgid, PTR(task, task_struct, real_parent), task_struct, tgid);
	return tgid;
}

/* The current process's relation to a task. */
static __always_inline u32 process_is(void *task)
{
	void *mine = current_task(), *up = task, *tty = 0, *my_tty = 0;
	u32 me = 0, first = 0, tgid = 0, above = process_parent(task);
	GET(me, mine, task_struct, tgid);
	GET(tgid, task, task_struct, tgid);
	if (me == tgid)
		return PROCESS_BY_ITSELF;
	READ(first, mine, task_struct, tgid);
	if (first == 1 || me == above || (above > 1 && process_parent(mine) == above))
		return PROCESS_BY_PARENT;
	GET(tty, PTR(task, task_struct, signal), signal_struct, tty);
	GET(my_tty, PTR(mine, task_struct, signal), signal_struct, tty);
	if (tty && tty == my_tty)
		return PROCESS_BY_TERMINAL;
#pragma unroll
	for (int n = 0; n < PROCESS_ANCESTORS; n++) {
		up = PTR(up, task_struct, real_parent);
		GET(tgid, up, task_struct, tgid);
		if (tgid == me)
			return PROCESS_BY_ANCESTOR;
	}
	return PROCESS_BY_OTHER;
}

/* The sender of a signal to that task; 0: to a whole cgroup. */
static __always_inline void process_current(struct process_sender *s, void *to)
{
	void *task = current_task();
	u32 flags = 0;
	__builtin_memset(s->comm, 0, sizeof(s->comm));
	s->pid = UNKNOWN32;
	s->parent = to ? process_parent(to) : UNKNOWN32;
	s->is = PROCESS_BY_KERNEL;
	GET(flags, task, task_struct, flags);
	if (flags & PF_KTHREAD)
		return;
	s->is = to ? process_is(to) : UNKNOWN8;
	s->pid = bpf_get_current_pid_tgid() >> 32;
	bpf_probe_read_kernel_str(s->comm, sizeof(s->comm), ADDR(PTR(task, task_struct, group_leader), task_struct, comm));
}

/* Whether it is tickscope's own process, or one that it started. */
static __always_inline int process_ours(void *task)
{
	struct control *c = get_control();
	u32 pid = 0, parent = 0;
	GET(pid, task, task_struct, tgid);
	GET(parent, PTR(task, task_struct, real_parent), task_struct, tgid);
	return c && c->agent_pid && (pid == c->agent_pid || parent == c->agent_pid);
}

static __always_inline void process_report(void *task, u8 kind, struct process_sender *s, u32 exit_code)
{
	u32 uid = uid_of(task);
	if (process_ours(task))
		return;
	if (over_share(uid, SHARE_PROCESS, PROCESS_EACH_NS, PROCESS_MOST)) {
		lose(LOST_process_shares);
		return;
	}
	struct process_event *e = process_events.ringbuf_reserve(sizeof(*e));
	if (!e) {
		lose(LOST_process_events);
		return;
	}
	e->t_ns = bpf_ktime_get_boot_ns();
	fill_proc(&e->proc, task);
	e->proc.tid = e->proc.pid;
	e->signal = s->signal;
	e->exit_code = exit_code;
	e->sender_pid = s->pid;
	e->uid = uid;
	e->parent_pid = s->parent == UNKNOWN32 ? process_parent(task) : s->parent;
	e->kind = kind;
	e->sender_is = s->is;
	__builtin_memset(e->pad, 0, sizeof(e->pad));
	__builtin_memcpy(e->sender_comm, s->comm, sizeof(e->sender_comm));
	process_events.ringbuf_submit(e, QUIET);
}

int process_on_signal(struct bpf_raw_tracepoint_args *ctx)
{
	u32 number = ctx->args[0], tgid = 0, flags = 0;
	void *task = (void *)ctx->args[2], *handler = 0;
	struct process_sender s;
	if (number > 31 || !((PROCESS_ENDING | PROCESS_STOPPING | 1u << PROCESS_SIGCONT | 1u << PROCESS_SIGSTOP) >> (number & 31) & 1))
		return 0;
	s.signal = number;
	if (number == PROCESS_SIGCONT) {
		GET(flags, PTR(task, task_struct, signal), signal_struct, flags);
		if (!(flags & PROCESS_CLD))
			return 0;
		process_current(&s, task);
		process_report(task, PROCESS_CONTINUED, &s, UNKNOWN32);
		return 0;
	}
	if (ctx->args[4])	/* ignored, or pending already */
		return 0;
	if (PROCESS_STOPPING >> number & 1) {
		/* struct k_sigaction is 32 bytes and begins with its handler; 0 is the kernel's default. */
		const char *actions = ADDR(PTR(task, task_struct, sighand), sighand_struct, action);
		bpf_probe_read_kernel(&handler, sizeof(handler), actions + (number - 1) * 32);
		if (handler)
			return 0;
	}
	process_current(&s, task);
	if (ctx->args[1] == 1)	/* SEND_SIG_PRIV */
		s.is = PROCESS_BY_KERNEL;
	if (!(PROCESS_ENDING >> number & 1)) {
		/* Sent by the kernel itself (SEND_SIG_PRIV), for a debugger: its continuation is not seen. */
		process_report(task, ctx->args[1] == 1 && number == PROCESS_SIGSTOP ? PROCESS_TRACED : PROCESS_STOPPED, &s, UNKNOWN32);
		return 0;
	}
	GET(tgid, task, task_struct, tgid);
	struct process_sender *before = process_senders.lookup(&tgid);
	if (number == 9 && before && before->pid == s.pid && PROCESS_ASKING >> (before->signal & 31) & 1)
		s.is = PROCESS_BY_ASKED;
	if (!before && over_share(uid_of(task), SHARE_SENDERS, PROCESS_SENDERS_EACH_NS, PROCESS_SENDERS_MOST))
		lose(LOST_process_shares);
	else
		process_senders.update(&tgid, &s);
	return 0;
}

int process_on_exit(struct bpf_raw_tracepoint_args *ctx)
{
	void *task = (void *)ctx->args[0], *signal = PTR(task, task_struct, signal), *oom = 0;
	u32 flags = 0, code = 0, live = 1, tgid = 0;
	u64 start = 0;
	struct process_sender s = {.pid = UNKNOWN32, .is = UNKNOWN8, .parent = UNKNOWN32}, *sent;
	bool remembered;
	GET(flags, task, task_struct, flags);
	GET(live, signal, signal_struct, live);
	if (live || flags & PF_KTHREAD)
		return 0;
	GET(code, task, task_struct, exit_code);
	GET(tgid, task, task_struct, tgid);
	s.signal = code & 0x7f;
	sent = process_senders.lookup(&tgid);
	remembered = sent;
	if (sent && (!s.signal || s.signal == sent->signal)) {
		__builtin_memcpy(&s, sent, sizeof(s));
	} else {
#if HAS_task_struct__start_boottime
		GET(start, PTR(task, task_struct, group_leader), task_struct, start_boottime);
#else
		GET(start, PTR(task, task_struct, group_leader), task_struct, real_start_time);
#endif
		if ((!s.signal || s.signal == PROCESS_SIGPIPE) && bpf_ktime_get_boot_ns() - start < PROCESS_SHORT_NS)
			goto out;
	}
	if (!s.signal)
		s.signal = UNKNOWN32;
	GET(oom, signal, signal_struct, oom_mm);
	process_report(task, oom ? PROCESS_OOM_KILLED : code & 0x7f ? PROCESS_KILLED : PROCESS_EXITED, &s, code & 0x7f ? UNKNOWN32 : code >> 8 & 0xff);
out:
	if (remembered) {
		process_senders.delete(&tgid);
		give_share_back(uid_of(task), SHARE_SENDERS, PROCESS_SENDERS_EACH_NS);
	}
	return 0;
}

static __always_inline void process_cgroup(void *cgroup, u8 kind)
{
	struct process_sender s = {.signal = UNKNOWN32};
	u32 uid = uid_of(current_task());
	if (over_share(uid, SHARE_PROCESS, PROCESS_EACH_NS, PROCESS_MOST)) {
		lose(LOST_process_shares);
		return;
	}
	process_current(&s, 0);
	struct process_event *e = process_events.ringbuf_reserve(sizeof(*e));
	if (!e) {
		lose(LOST_process_events);
		return;
	}
	__builtin_memset(e, 0, sizeof(*e));
	no_proc(&e->proc);
	e->t_ns = bpf_ktime_get_boot_ns();
	GET(e->proc.cgroup_id, PTR(cgroup, cgroup, kn), kernfs_node, id);
	e->signal = e->exit_code = UNKNOWN32;
	e->sender_pid = s.pid;
	e->uid = uid;
	e->parent_pid = UNKNOWN32;
	e->kind = kind;
	e->sender_is = UNKNOWN8;
	__builtin_memcpy(e->sender_comm, s.comm, sizeof(e->sender_comm));
	process_events.ringbuf_submit(e, QUIET);
}

/* For each cgroup at and below the written one, in the writer's context. */
int process_on_freeze(struct bpf_raw_tracepoint_args *ctx)
{
	process_cgroup((void *)ctx->args[0], PROCESS_FROZEN);
	return 0;
}

int process_on_unfreeze(struct bpf_raw_tracepoint_args *ctx)
{
	process_cgroup((void *)ctx->args[0], PROCESS_THAWED);
	return 0;
}
