/* Kernel type names over the compiler's own; BCC forces this file into every translation unit. */
#pragma once
typedef unsigned char u8, __u8;
typedef unsigned short u16, __u16, __be16, __sum16, __le16;
typedef unsigned int u32, __u32, __be32, __wsum, __le32;
typedef unsigned long long u64, __u64, __be64, __le64;
typedef signed char s8, __s8;
typedef short s16, __s16;
typedef int s32, __s32;
typedef long long s64, __s64;
typedef _Bool bool;
typedef unsigned long size_t, uintptr_t;
typedef long ssize_t;
typedef int pid_t;
#define __always_inline inline __attribute__((always_inline))
#define true 1
#define false 0
#define NULL ((void *)0)
#define __aligned_u64 u64 __attribute__((aligned(8)))
