/* The whole "kernel configuration" that BCC's own headers ask about. */
#pragma once
#define CONFIG_BPF_SYSCALL 1
