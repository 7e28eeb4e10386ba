/* SPDX-License-Identifier: MIT */
#define PAGE_SIZE 4096
