// SPDX-License-Identifier: (GPL-2.0-only OR MIT)
/*
 * What one get from task local storage costs, and one lookup in a hash map.
 *
 * Every program runs in place and is called with (chunks, ...): it makes chunks * CHUNK gets or
 * lookups and returns how many nanoseconds they took together. A _control twin differs only in
 * the call that is measured and that call's arguments.
 *
 * Definitions: CHUNK and CHUNKS (gets a chunk, chunks a call at most), OUTER (task-storage maps),
 * ROWS and POSITIONS (orders of gets; a power of two), ENTRIES and HASH_FLAGS of the hash map.
 */
#include <linux/types.h>
#include <labkit/loop.h>

struct lab_positions {
	u16 map[POSITIONS];
};

BPF_TASK_STORAGE(lab_storage, int);
BPF_ARRAY_OF_MAPS(lab_outer, "lab_storage", OUTER);
BPF_TABLE("array", u32, struct lab_positions, lab_order, ROWS);
BPF_F_TABLE("hash", u32, u32, lab_hash, ENTRIES, HASH_FLAGS);

/* Arguments: chunks, first position, row. Which map the p-th get goes to is data, not code. */
static __always_inline u32 storage(struct bpf_raw_tracepoint_args *ctx, enum operation operation)
{
	u64 chunks = ctx->args[0], position = ctx->args[1];
	u32 row = ctx->args[2];
	struct task_struct *task = bpf_get_current_task_btf();
	struct lab_positions *order = lab_order.lookup(&row);
	u64 begin;

	if (!order)
		return 0;
	begin = bpf_ktime_get_ns();
	FOR_EACH_TURN(chunks) {
		u32 index = order->map[position++ & (POSITIONS - 1)];
		void *map = lab_outer.lookup(&index);

		if (!map)
			return 0;
		KEEP(task);
		KEEP(map);
		if (operation == TIMED)
			bpf_task_storage_get(map, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	}
	return bpf_ktime_get_ns() - begin;
}

int lab_storage_get(struct bpf_raw_tracepoint_args *ctx)
{
	return storage(ctx, TIMED);
}

int lab_storage_control(struct bpf_raw_tracepoint_args *ctx)
{
	return storage(ctx, CONTROL);
}

/* Untimed: makes storage where there is none yet, and returns how many gets came before a failure. */
int lab_storage_count(struct bpf_raw_tracepoint_args *ctx)
{
	u32 gets = ctx->args[0], position = ctx->args[1], row = ctx->args[2], turn;
	struct task_struct *task = bpf_get_current_task_btf();
	struct lab_positions *order = lab_order.lookup(&row);

	if (!order)
		return 0;
	for (turn = 0; turn < 1000 && turn < gets; turn++) {
		u32 index = order->map[position++ & (POSITIONS - 1)];
		void *map = lab_outer.lookup(&index);
		int *value;

		if (!map)
			break;
		value = bpf_task_storage_get(map, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
		if (!value)
			break;
		*value += 1;
	}
	return turn;
}

/* Arguments: chunks, keys. Lookups of a random one among the first keys. */
static __always_inline u32 hash(struct bpf_raw_tracepoint_args *ctx, enum operation operation)
{
	u64 chunks = ctx->args[0], keys = ctx->args[1];
	u64 begin = bpf_ktime_get_ns();

	FOR_EACH_TURN(chunks) {
		u32 key = bpf_get_prandom_u32() % keys;

		KEEP(&key);
		if (operation == TIMED)
			lab_hash.lookup(&key);
	}
	return bpf_ktime_get_ns() - begin;
}

int lab_hash_lookup(struct bpf_raw_tracepoint_args *ctx)
{
	return hash(ctx, TIMED);
}

int lab_hash_control(struct bpf_raw_tracepoint_args *ctx)
{
	return hash(ctx, CONTROL);
}

/* Untimed: returns how many random lookups found their key before one did not. */
int lab_hash_count(struct bpf_raw_tracepoint_args *ctx)
{
	u32 lookups = ctx->args[0], keys = ctx->args[1], turn;

	for (turn = 0; turn < 1000 && turn < lookups; turn++) {
		u32 key = bpf_get_prandom_u32() % keys;
		u32 *value = lab_hash.lookup(&key);

		if (!value || *value != key)
			break;
	}
	return turn;
}
