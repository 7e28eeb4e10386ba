/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/*
 * Loops that time themselves.
 *
 * Definitions: CHUNK (turns a chunk) and CHUNKS (chunks a call at most).
 */
#ifndef LABKIT_LOOP_H
#define LABKIT_LOOP_H

/* bcc puts it into each program; helpers for GPL programs need the second half. */
#define BPF_LICENSE Dual MIT/GPL

/* A program of either kind is compiled from the same function: only the operation differs. */
enum operation { CONTROL, TIMED };

/* Keeps a value alive that only the other kind uses. */
#define KEEP(value) asm volatile("" : : "r"(value) : "memory")

/*
 * The verifier walks every turn and keeps a branch open for each one whose outcome it does not
 * know, 8192 at most: the turns of a chunk are fixed, and only the chunks are counted. Counters
 * have 64 bits, because 32-bit ones cost two shifts a turn.
 */
#define FOR_EACH_TURN(chunks)                                                                      \
	for (u64 chunk = 0; chunk < CHUNKS && chunk < (chunks); chunk++)                           \
		_Pragma("clang loop unroll(disable)")                                              \
		for (u64 turn = 0; turn < CHUNK; turn++)

#endif
