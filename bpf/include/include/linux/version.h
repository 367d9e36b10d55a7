/* Variants are chosen from BTF, never from a version. */
#pragma once
#define LINUX_VERSION_CODE 0
#define KERNEL_VERSION(a, b, c) (((a) << 16) + ((b) << 8) + (c))
