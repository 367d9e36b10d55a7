/* Everything in bpf/ that depends on the processor: x86-64's registers, calling conventions and system calls, and those
 * of its 32-bit programs (i386). Included by tickscope.h. For another processor: a header with the same names, and
 * agent/arch/.
 *
 * At a uprobe, functions give a register's value: reg_arg1(ctx). Of a system call, names of registers are given to
 * LOAD_REG, READ_REG and GET_REG: READ_REG(dst, regs, CALL_ARG1). */
#pragma once

#if !defined(__x86_64__)
#error "no header of this processor's registers: see bpf/arch_x86.h"
#endif

/* At a uprobe in C (System V ABI). */
static __always_inline u64 reg_arg1(struct pt_regs *ctx) { return ctx->di; }
static __always_inline u64 reg_arg2(struct pt_regs *ctx) { return ctx->si; }
static __always_inline u64 reg_arg3(struct pt_regs *ctx) { return ctx->dx; }
static __always_inline u64 reg_return(struct pt_regs *ctx) { return ctx->ax; }
static __always_inline u64 reg_ip(struct pt_regs *ctx) { return ctx->ip; }
static __always_inline u64 reg_stack(struct pt_regs *ctx) { return ctx->sp; }
/* Points to the caller's, and to its return address. Go has it, too (cmd/internal/obj/x86). */
static __always_inline u64 reg_frame(struct pt_regs *ctx) { return ctx->bp; }

/* The return address, at a function's first instruction or its RET; 0 if it cannot be read. */
static __always_inline void read_return_address(u64 *to, struct pt_regs *ctx)
{
	if (bpf_probe_read_user(to, sizeof(*to), (void *)ctx->sp))
		*to = 0;
}

#define RETURN_POPS 8	/* bytes that a return takes from the stack */

/* The goroutine that runs, at a uprobe in Go (cmd/compile/abi-internal.md, since Go 1.17). */
static __always_inline u64 go_goroutine(struct pt_regs *ctx) { return ctx->r14; }

/* A register by its number in `GO` of agent/arch/registers.py; 10 is none. number: a constant, so that this is a single
 * load. */
static __always_inline u64 reg_numbered(struct pt_regs *ctx, u32 number)
{
	switch (number) {
	case 0: return ctx->ax;
	case 1: return ctx->bx;
	case 2: return ctx->cx;
	case 3: return ctx->di;
	case 4: return ctx->si;
	case 5: return ctx->r8;
	case 6: return ctx->r9;
	case 7: return ctx->r10;
	case 8: return ctx->r11;
	case 9: return ctx->sp;
	case 11: return ctx->dx;
	default: return UNKNOWN64;
	}
}

/* A word of Go's arguments at a function's entry, or of its results at its return, counted from 0 (`GO` of
 * agent/arch/registers.py). */
static __always_inline u64 go_word(struct pt_regs *ctx, u32 number) { return reg_numbered(ctx, number); }

/* Names of registers in a system call. */
#define CALL_NUMBER orig_ax
#define CALL_ARG1 di
#define CALL_ARG2 si
#define CALL_ARG3 dx
#define CALL_RETURN ax
#define COMPAT_ARG1 bx		/* of a 32-bit program's */
#define COMPAT_ARG2 cx
#define CALL_GOROUTINE r14	/* of a Go program's */

/* Whether a call is under way, by CALL_RETURN: it is -ENOSYS from entry to return. Else a page fault, an interrupt or a
 * new thread, and CALL_NUMBER is not valid. */
#define CALL_UNDER_WAY(value) ((long)(value) == -38)
/* Whether the thread came from user mode by an exception or an interrupt, by CALL_NUMBER. */
#define IN_EXCEPTION(value) ((long)(value) == -1)

#define TASK_STACK_BYTES (4 * PAGE_SIZE)	/* of the kernel's stack of a task */

/* The registers with which the current task entered the kernel. task: as current_task() returns it. */
static __always_inline void *call_regs(void *task)
{
#if FUNC_task_pt_regs
	return (void *)bpf_task_pt_regs(task);
#else
	return (char *)PTR(task, task_struct, stack) + TASK_STACK_BYTES - sizeof(struct pt_regs);
#endif
}

/* Those of another task, which does not run. They lie where they do in the current one's stack. */
static __always_inline void *call_regs_of(void *task)
{
	void *mine = current_task(), *regs = call_regs(mine);
	u64 at = 0;
	bpf_probe_read_kernel(&at, sizeof(at), &regs);	/* as a number: the verifier allows no difference of pointers */
	return (char *)PTR(task, task_struct, stack) + (at - (u64)PTR(mine, task_struct, stack));
}

/* One of these registers. LOAD_REG: where the verifier knows their type, or from a copy; GET_REG: loaded if it knows it
 * (5.15). */
#define REG_ADDR(regs, name) ((const char *)(regs) + __builtin_offsetof(struct pt_regs, name))
#define LOAD_REG(regs, name) (*(const unsigned long *)REG_ADDR(regs, name))
#define READ_REG(dst, regs, name) bpf_probe_read_kernel(&(dst), sizeof(dst), REG_ADDR(regs, name))
#if FUNC_task_pt_regs
#define GET_REG(dst, regs, name) ({ (dst) = LOAD_REG(regs, name); })
#else
#define GET_REG READ_REG
#endif

/* Declares `regs`, of which LOAD_REG takes many registers. */
#if FUNC_task_pt_regs
#define CALL_REGS(regs, task) const void *regs = call_regs(task)
#else
#define CALL_REGS(regs, task)								\
	struct pt_regs regs##_copy = {}, *regs = &regs##_copy;				\
	bpf_probe_read_kernel(regs, sizeof(regs##_copy), call_regs(task))
#endif

/* A hash of the registers that do not change within a call. regs: for LOAD_REG. */
static __always_inline u64 call_hash(const void *regs)
{
	unsigned long words[] = {
		LOAD_REG(regs, ip), LOAD_REG(regs, sp), LOAD_REG(regs, di), LOAD_REG(regs, si), LOAD_REG(regs, dx),
		LOAD_REG(regs, r10), LOAD_REG(regs, bx), LOAD_REG(regs, bp), LOAD_REG(regs, r12), LOAD_REG(regs, r13),
		LOAD_REG(regs, r14), LOAD_REG(regs, r15),
	};
	u64 hash = LOAD_REG(regs, orig_ax);
#pragma unroll
	for (int i = 0; i < 12; i++)
		hash = (hash << 7 | hash >> 57) ^ words[i];
	return hash;
}

/* Whether a task is in a 32-bit program's call; by: READ, or LOAD for what current_task() returns. Not valid at the end
 * of an execve, which returns to the new program. */
#if HAS_thread_info__status
#define TS_COMPAT 2
#define COMPAT_CALL(by, task) ({ u32 _status = 0; by(_status, task, thread_info, status); !!(_status & TS_COMPAT); })
#else
#define COMPAT_CALL(by, task) false
#endif

/* Numbers of system calls, as in agent/arch/syscalls_x86_64.txt and, of 32-bit programs', syscalls_i386.txt. */
#define NR_read 0
#define NR_readv 19
#define NR_recvfrom 45
#define NR_recvmsg 47
#define NR_adjtimex 159
#define NR_settimeofday 164
#define NR_clock_settime 227
#define NR_clock_adjtime 305
#define COMPAT_NR_stime 25	/* whole seconds */
#define COMPAT_NR_settimeofday 79
#define COMPAT_NR_adjtimex 124
#define COMPAT_NR_clock_settime 264
#define COMPAT_NR_clock_adjtime 343
#define COMPAT_NR_clock_settime64 404	/* with structs of 64-bit programs */
#define COMPAT_NR_clock_adjtime64 405
