// SPDX-License-Identifier: (GPL-2.0-only OR MIT)
/*
 * Adding, overwriting and deleting elements of a hash map, 64 a call.
 *
 * Every program runs in place and is called with (producer, first key, stride): its keys are
 * first, first + stride, ... It adds what it did to the producer's tally. A _control twin differs
 * only in the operations and their arguments. A call is one batch: in a longer one, a single
 * read-side section, deferred frees would wait for its end.
 *
 * lab_map stands for the map under test, which is made elsewhere and put in its place.
 *
 * Definitions: BATCH (elements a call), VALUE_BYTES, PRODUCERS.
 */
#include <linux/types.h>
#include <labkit/loop.h>

struct lab_value {
	u8 bytes[VALUE_BYTES];
};

/* Fills two cache lines, so that producers do not share one. */
struct lab_tally {
	u64 batches, failed, elapsed_ns;
	u64 padding[13];
};

BPF_HASH(lab_map, u32, struct lab_value, 1);
BPF_ARRAY(lab_zero, struct lab_value, 1);
BPF_ARRAY(lab_tallies, struct lab_tally, PRODUCERS);

/* Negative results are counted without a branch, of which the verifier would keep each. */
#define FAILED(result) ((u32)(result) >> 31)

enum add { NO_ADD, ADD_ANY, ADD_NEW };

static __always_inline int batch(struct bpf_raw_tracepoint_args *ctx, enum operation operation,
				 enum add add, bool del)
{
	u32 producer = ctx->args[0], first = ctx->args[1], stride = ctx->args[2], zero = 0;
	struct lab_tally *tally = lab_tallies.lookup(&producer);
	struct lab_value *value = lab_zero.lookup(&zero);
	u64 begin, failed = 0;
	s64 result = 0;

	if (!tally || !value)
		return 0;
	begin = bpf_ktime_get_ns();
	if (add != NO_ADD) {
		for (u64 turn = 0; turn < BATCH; turn++) {
			u32 key = first + turn * stride;

			KEEP(&key);
			KEEP(value);
			if (operation == TIMED && add == ADD_ANY)
				result = lab_map.update(&key, value);
			if (operation == TIMED && add == ADD_NEW)
				result = lab_map.insert(&key, value);
			failed += FAILED(result);
		}
		tally->batches++;
	}
	if (del) {
		for (u64 turn = 0; turn < BATCH; turn++) {
			u32 key = first + turn * stride;

			KEEP(&key);
			if (operation == TIMED)
				result = lab_map.delete(&key);
			failed += FAILED(result);
		}
		tally->batches++;
	}
	tally->elapsed_ns += bpf_ktime_get_ns() - begin;
	tally->failed += failed;
	return 0;
}

#define PROGRAM(name, ...)                                                                         \
	int lab_##name(struct bpf_raw_tracepoint_args *ctx)                                        \
	{                                                                                          \
		return batch(ctx, TIMED, __VA_ARGS__);                                             \
	}                                                                                          \
	int lab_##name##_control(struct bpf_raw_tracepoint_args *ctx)                              \
	{                                                                                          \
		return batch(ctx, CONTROL, __VA_ARGS__);                                           \
	}

PROGRAM(overwrite, ADD_ANY, false)
PROGRAM(add_and_delete, ADD_ANY, true)
PROGRAM(add_new, ADD_NEW, false)
PROGRAM(delete, NO_ADD, true)
