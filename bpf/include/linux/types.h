/* SPDX-License-Identifier: MIT */
#ifndef LABKIT_TYPES_H
#define LABKIT_TYPES_H

typedef signed char __s8;
typedef unsigned char __u8;
typedef short __s16;
typedef unsigned short __u16;
typedef int __s32;
typedef unsigned int __u32;
typedef long long __s64;
typedef unsigned long long __u64;

typedef __s8 s8, int8_t;
typedef __u8 u8, uint8_t;
typedef __s16 s16, int16_t;
typedef __u16 u16, uint16_t;
typedef __s32 s32, int32_t;
typedef __u32 u32, uint32_t;
typedef __s64 s64, int64_t;
typedef __u64 u64, uint64_t;

typedef __u16 __le16, __be16, __sum16;
typedef __u32 __le32, __be32, __wsum;
typedef __u64 __le64, __be64;

typedef _Bool bool;
typedef unsigned long size_t, uintptr_t;
typedef long ssize_t;
typedef int pid_t;

#define __aligned_u64 __u64 __attribute__((aligned(8)))
#define __always_inline inline __attribute__((always_inline))
#define true 1
#define false 0
#define NULL ((void *)0)

#endif
