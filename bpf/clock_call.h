/* Calls on a clock: records of who requests what, and reading a call's registers and structs, also of 32-bit programs.
 * First in the family of bpf/clock.bpf.c. */

#define CLOCK_LIBC_ADJTIME 0xfffe	/* adjtime(3), which is no system call */
#define CLOCK_CAP_SYS_TIME 25
#define CLOCK_EPERM (-1)
#define CLOCK_EACH_NS 62500000	/* of a user's refused attempts; a call may be seen twice */
#define CLOCK_MOST 64
/* (cred, ns, capable_ns, cap, ret) of the tracepoint; (cred, ns, cap, opts), ret of the function */
#if TP_cap_capable
#define CLOCK_ASK_CAP 3
#else
#define CLOCK_ASK_CAP 2
#endif
#define CLOCK_NOISE_NS 300	/* larger than the difference of two readings of an unmoved offset */
#define CLOCK_CALL_NS 1000000000ull	/* none of these calls sleeps: an older entry has missed its return */

enum { CLOCK_WOKE, CLOCK_ASK, CLOCK_LIBC };

struct clock_event {
	u64 t_ns;		/* BOOTTIME of the observation; libc: of the return */
	u64 start_ns;		/* libc: of the entry, else as t_ns */
	s64 tai_boot_before_ns;	/* TAI - BOOTTIME before the change; all ones unknown */
	s64 tai_boot_after_ns;
	u32 before_err_ns;
	u32 after_err_ns;
	struct proc proc;
	s64 asked_s;		/* the requested time, or ADJ_SETOFFSET's step */
	s64 asked_part;		/* its ns, or us (settimeofday, ADJ_SETOFFSET without ADJ_NANO, adjtime) */
	s64 offset;		/* struct timex, as the caller passed it */
	s64 freq;
	s64 constant;
	s64 tick;
	s64 freq_after;		/* libc: as the kernel filled it in */
	s64 tick_after;
	u32 modes;
	u32 status;
	u32 status_after;
	u32 nr;			/* system call number; CLOCK_LIBC_ADJTIME */
	s32 ret;
	u8 source;
	u8 pad[3];
};

/* The used part of struct timex, include/uapi/linux/timex.h (64-bit). */
struct clock_timex {
	u32 modes, pad0;
	s64 offset, freq, maxerror, esterror;
	s32 status, pad1;
	s64 constant, precision, tolerance, sec, part, tick;
};

/* The same for 32-bit programs without 64-bit time: struct old_timex32, include/linux/timex.h. */
struct clock_timex32 {
	u32 modes;
	s32 offset, freq, maxerror, esterror, status, constant, precision, tolerance, sec, part, tick;
};

#define ADJ_SETOFFSET_BIT 0x0100
#define ADJ_ADJTIME_BIT 0x8000
#define ADJ_READONLY_BIT 0x2000

/* The 64-bit number of a 32-bit program's call; 0 for other calls. */
static __always_inline u32 clock_compat(u32 nr)
{
	switch (nr) {
	case COMPAT_NR_clock_settime:
	case COMPAT_NR_clock_settime64:
		return NR_clock_settime;
	case COMPAT_NR_clock_adjtime:
	case COMPAT_NR_clock_adjtime64:
		return NR_clock_adjtime;
	case COMPAT_NR_stime:
	case COMPAT_NR_settimeofday:
		return NR_settimeofday;
	case COMPAT_NR_adjtimex:
		return NR_adjtimex;
	}
	return 0;
}

/* From either layout. */
#define CLOCK_KEEP_TIMEX(e, tx) do { \
	(e)->modes = (tx).modes; \
	(e)->offset = (tx).offset; \
	(e)->freq = (tx).freq; \
	(e)->status = (tx).status; \
	(e)->constant = (tx).constant; \
	(e)->tick = (tx).tick; \
	if ((tx).modes & ADJ_SETOFFSET_BIT) { \
		(e)->asked_s = (tx).sec; \
		(e)->asked_part = (tx).part; \
	} \
} while (0)

static __always_inline int clock_take_timex(struct clock_event *e, void *from)
{
	struct clock_timex tx = {};
	if (bpf_probe_read_user(&tx, sizeof(tx), from))
		return -14;
	CLOCK_KEEP_TIMEX(e, tx);
	return 0;
}

static __always_inline void clock_take_timex32(struct clock_event *e, void *from)
{
	struct clock_timex32 tx = {};
	if (bpf_probe_read_user(&tx, sizeof(tx), from))
		return;
	CLOCK_KEEP_TIMEX(e, tx);
}

static __always_inline void clock_take_time32(struct clock_event *e, void *from, u32 bytes)
{
	s32 at[2] = {};
	if (!from || bpf_probe_read_user(at, bytes, from))
		return;
	e->asked_s = at[0];
	e->asked_part = at[1];
}

static __always_inline int clock_take_time(struct clock_event *e, void *from)
{
	s64 at[2];
	if (!from || bpf_probe_read_user(at, sizeof(at), from))
		return -14;
	e->asked_s = at[0];
	e->asked_part = at[1];
	return 0;
}

static __always_inline void clock_describe_who(struct clock_event *e, u32 nr)
{
	e->nr = nr;
	e->tai_boot_before_ns = e->tai_boot_after_ns = e->asked_s = e->asked_part = UNKNOWN64;
	e->before_err_ns = e->after_err_ns = UNKNOWN32;
	e->freq_after = e->tick_after = UNKNOWN64;
	e->status_after = UNKNOWN32;
	e->t_ns = e->start_ns = bpf_ktime_get_boot_ns();
	fill_proc(&e->proc, (void *)bpf_get_current_task());
}

static __always_inline bool clock_changes(struct clock_event *e)
{
	return e->modes && !((e->modes & ADJ_ADJTIME_BIT) && (e->modes & ADJ_READONLY_BIT));
}

/* Fills in the process and the request; false for a call that changes no clock of the host. */
static __always_inline bool clock_describe(struct clock_event *e, u32 nr, u64 arg1, u64 arg2)
{
	clock_describe_who(e, nr);
	if (nr == NR_clock_settime)
		return !arg1 && clock_take_time(e, (void *)arg2) <= 0;
	if (nr == NR_settimeofday || nr == CLOCK_LIBC_ADJTIME)
		return arg1 && clock_take_time(e, (void *)arg1) <= 0;
	if (nr == NR_adjtimex)
		e->ret = clock_take_timex(e, (void *)arg1);
	else if (nr == NR_clock_adjtime && !arg1)
		e->ret = clock_take_timex(e, (void *)arg2);
	else
		return false;
	return clock_changes(e);
}

/* As clock_describe, for a 32-bit program's call. number: the 32-bit one. */
static __always_inline bool clock_describe_compat(struct clock_event *e, u32 number, u32 arg1, u32 arg2)
{
	u32 nr = clock_compat(number);
	if (number == COMPAT_NR_clock_settime64 || number == COMPAT_NR_clock_adjtime64)	/* its structs are those of 64-bit programs */
		return clock_describe(e, nr, arg1, arg2);
	clock_describe_who(e, nr);
	if (nr == NR_clock_settime && !arg1) {
		clock_take_time32(e, (void *)(u64)arg2, 8);
		return true;
	}
	if (nr == NR_settimeofday && arg1) {
		clock_take_time32(e, (void *)(u64)arg1, number == COMPAT_NR_stime ? 4 : 8);
		return true;
	}
	if (nr == NR_adjtimex)
		clock_take_timex32(e, (void *)(u64)arg1);
	else if (nr == NR_clock_adjtime && !arg1)
		clock_take_timex32(e, (void *)(u64)arg2);
	return clock_changes(e);
}

/* As clock_describe, for the current task's call. */
static __always_inline bool clock_describe_current(struct clock_event *e)
{
	void *regs = call_regs(current_task());
	u64 number = 0, arg1 = 0, arg2 = 0;
	READ_REG(number, regs, CALL_NUMBER);
	if (COMPAT_CALL(READ, (void *)bpf_get_current_task())) {
		READ_REG(arg1, regs, COMPAT_ARG1);
		READ_REG(arg2, regs, COMPAT_ARG2);
		return clock_describe_compat(e, number, arg1, arg2);
	}
	READ_REG(arg1, regs, CALL_ARG1);
	READ_REG(arg2, regs, CALL_ARG2);
	return clock_describe(e, number, arg1, arg2);
}
