/* Saved user registers, arch/x86/include/asm/ptrace.h and arch/arm64/include/uapi/asm/ptrace.h. */
#pragma once
#include <linux/types.h>
#if defined(__x86_64__)
struct pt_regs {
	unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
};
#elif defined(__aarch64__)
struct user_pt_regs { u64 regs[31], sp, pc, pstate; };
struct pt_regs { u64 regs[31], sp, pc, pstate, orig_x0; s32 syscallno; u32 unused; };
#endif
