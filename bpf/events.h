/* Wire structs that several probe families share. Every struct sent to user space, here or in NAME.bpf.c, has flat
 * integers, char arrays and these two, with explicit padding. agent/kernel/wire_structs.py derives the numpy dtypes from
 * this text, and the loader adds static assertions for each size and offset. All ones means unknown. */
#pragma once
#include <linux/types.h>

struct proc {
	u32 pid;		/* thread group */
	u32 tid;
	u64 proc_start_ns;	/* CLOCK_BOOTTIME */
	u64 cgroup_id;
	char comm[16];		/* of the thread group's leader */
};

struct sock_ref {
	u64 sock_id;
	u32 netns;
	u16 sport;		/* host order */
	u16 dport;		/* host order */
	u8 saddr[16];		/* IPv4 as v4-mapped */
	u8 daddr[16];
	u8 family;		/* 0 ipv4, 1 ipv6: the table's enum order */
	u8 role;		/* 0 client, 1 server, 255 unknown */
	u8 pad[6];
};

#define UNKNOWN64 (~0ull)
#define UNKNOWN32 (~0u)
#define UNKNOWN8 0xff
