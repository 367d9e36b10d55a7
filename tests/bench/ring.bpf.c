/* Fills a ring on demand (BPF_PROG_TEST_RUN): records of the size that most families send. Driven by tests/bench/ring.py. */
#include <uapi/linux/ptrace.h>
#include "events.h"

struct bench_record {
	u64 t_ns;
	struct proc proc;
	u64 duration_ns;
	u64 number;
};

BPF_RINGBUF_OUTPUT(records, RING_PAGES);

int fill(struct __sk_buff *skb)
{
	struct bench_record *r = records.ringbuf_reserve(sizeof(*r));
	if (!r)
		return 1;
	__builtin_memset(r, 0, sizeof(*r));
	r->t_ns = bpf_ktime_get_ns();
	r->proc.pid = r->proc.tid = 1;
	r->duration_ns = 1000;
	r->number = r->t_ns & 7;
	records.ringbuf_submit(r, BPF_RB_NO_WAKEUP);
	return 0;
}
