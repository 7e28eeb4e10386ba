/* SPDX-License-Identifier: MIT */
/* Only kernels before 5.0 look at the version of a program, and only of a kprobe. */
#define KERNEL_VERSION(a, b, c) (((a) << 16) + ((b) << 8) + (c))
#define LINUX_VERSION_CODE KERNEL_VERSION(5, 10, 0)
