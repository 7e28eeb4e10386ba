// SPDX-License-Identifier: (GPL-2.0-only OR MIT)
/*
 * What operations on a hash map with long keys cost.
 *
 * The keys lie ready in an array, each followed by 8 bytes of zero: a key is used where it lies,
 * since the stack has no room for it. What begins 8 bytes after a key is as long as a key and never
 * one (see key_length.py): with it a lookup misses.
 *
 * Every program runs in place and is called with (chunks, position, keys, offset): it makes
 * chunks * CHUNK turns with the keys from that position on, round and round, and returns how many
 * nanoseconds they took together, or 0 where an operation failed. Its control is the same program
 * with a result in place of each call on lab_hash.
 *
 * Definitions: CHUNK and CHUNKS (turns a chunk, chunks a call at most).
 */
#include <linux/types.h>
#include <labkit/loop.h>

/* They stand for maps that are made outside, with keys of any length: programs are bound to those. */
BPF_F_TABLE("hash", u64, u32, lab_hash, 1, 0);
BPF_TABLE("array", u32, u64, lab_keys, 1);

int lab_lookup(struct bpf_raw_tracepoint_args *ctx)
{
	u64 chunks = ctx->args[0], position = ctx->args[1], keys = ctx->args[2];
	u64 offset = ctx->args[3] & 8;
	u64 begin = bpf_ktime_get_ns();

	FOR_EACH_TURN(chunks) {
		u32 index = position++ % keys;
		void *key = lab_keys.lookup(&index);

		if (!key)
			return 0;
		lab_hash.lookup(key + offset);
	}
	return bpf_ktime_get_ns() - begin;
}

/* The map is full but for one key at most. */
int lab_delete_update(struct bpf_raw_tracepoint_args *ctx)
{
	u64 chunks = ctx->args[0], position = ctx->args[1], keys = ctx->args[2], begin, elapsed;
	u32 wrong = 0;

	begin = bpf_ktime_get_ns();
	FOR_EACH_TURN(chunks) {
		u32 index = position++ % keys;
		void *key = lab_keys.lookup(&index);

		if (!key)
			return 0;
		wrong |= lab_hash.delete(key);
		wrong |= lab_hash.update(key, &index);
	}
	elapsed = bpf_ktime_get_ns() - begin;
	return wrong ? 0 : elapsed;
}

/*
 * Untimed: how many of the keys, 256 at most, were found with their index, or with an offset not
 * found, before one was otherwise.
 */
int lab_in_order(struct bpf_raw_tracepoint_args *ctx)
{
	u64 turns = ctx->args[0], position = ctx->args[1], keys = ctx->args[2], turn;
	u64 offset = ctx->args[3] & 8;

	for (turn = 0; turn < 256 && turn < turns; turn++) {
		u32 index = position++ % keys, *value;
		void *key = lab_keys.lookup(&index);

		if (!key)
			break;
		value = lab_hash.lookup(key + offset);
		if (offset) {
			if (value)
				break;
		} else if (!value || *value != index) {
			break;
		}
	}
	return turn;
}
