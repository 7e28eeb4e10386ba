/* SPDX-License-Identifier: MIT */
#ifndef LABKIT_KCONFIG_H
#define LABKIT_KCONFIG_H
#define CONFIG_BPF_SYSCALL 1
#endif
