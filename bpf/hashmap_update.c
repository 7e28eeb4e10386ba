// SPDX-License-Identifier: (GPL-2.0-only OR MIT)
/*
 * What operations on one key of a small hash map cost: updates of a full map, which fail; update,
 * lookup and delete in turn; lookups.
 *
 * Every program runs in place and is called with (chunks, key): it makes chunks * CHUNK turns and
 * returns how many nanoseconds they took together, or 0 where an operation did not end as it had
 * to. The one that runs on several CPUs at the same time adds up what it did in the tally of its
 * producer, a third argument. A control is the same program with a result in place of each call on
 * lab_hash.
 *
 * Definitions: CHUNK and CHUNKS (turns a chunk, chunks a call at most), PRODUCERS.
 */
#include <linux/types.h>
#include <labkit/loop.h>

#define E2BIG 7

/* Stands for maps that are made outside, preallocated and not: programs are bound to those. */
BPF_F_TABLE("hash", u32, u64, lab_hash, 1, 0);

/* Fills two cache lines, so that producers do not share one. */
struct lab_tally {
	u64 updates, wrong_calls, elapsed_ns;
	u64 padding[13];
};

BPF_ARRAY(lab_tallies, struct lab_tally, PRODUCERS);

int lab_full_update(struct bpf_raw_tracepoint_args *ctx)
{
	u64 chunks = ctx->args[0], value = 0, begin;
	u32 key = ctx->args[1], producer = ctx->args[2], wrong = 0;
	struct lab_tally *tally = lab_tallies.lookup(&producer);

	if (!tally)
		return 0;
	begin = bpf_ktime_get_ns();
	FOR_EACH_TURN(chunks)
		wrong |= lab_hash.update(&key, &value) ^ -E2BIG;
	tally->elapsed_ns += bpf_ktime_get_ns() - begin;
	tally->updates += chunks * CHUNK;
	tally->wrong_calls += !!wrong;
	return 0;
}

int lab_update_lookup_delete(struct bpf_raw_tracepoint_args *ctx)
{
	u64 chunks = ctx->args[0], value = 0, begin, elapsed;
	u32 key = ctx->args[1], wrong = 0;

	begin = bpf_ktime_get_ns();
	FOR_EACH_TURN(chunks) {
		wrong |= lab_hash.update(&key, &value);
		lab_hash.lookup(&key);
		wrong |= lab_hash.delete(&key);
	}
	elapsed = bpf_ktime_get_ns() - begin;
	return wrong ? 0 : elapsed;
}

int lab_lookup(struct bpf_raw_tracepoint_args *ctx)
{
	u64 chunks = ctx->args[0];
	u32 key = ctx->args[1];
	u64 begin = bpf_ktime_get_ns();

	FOR_EACH_TURN(chunks)
		lab_hash.lookup(&key);
	return bpf_ktime_get_ns() - begin;
}

/* Untimed: whether the map has the key. */
int lab_has(struct bpf_raw_tracepoint_args *ctx)
{
	u32 key = ctx->args[1];

	return lab_hash.lookup(&key) ? 1 : 0;
}
