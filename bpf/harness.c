// SPDX-License-Identifier: (GPL-2.0-only OR MIT)
/* The loop alone, for ./lab benchmark. Called with (chunks); returns nanoseconds. */
#include <linux/types.h>
#include <labkit/loop.h>

int lab_empty(struct bpf_raw_tracepoint_args *ctx)
{
	u64 chunks = ctx->args[0];
	u64 begin = bpf_ktime_get_ns();

	FOR_EACH_TURN(chunks)
		KEEP(turn);
	return bpf_ktime_get_ns() - begin;
}

int lab_nothing(struct bpf_raw_tracepoint_args *ctx)
{
	return 0;
}
