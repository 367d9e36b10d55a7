/* Fills a ring on demand (BPF_PROG_TEST_RUN) with records of a usual size. Driven by tests/bench/ring.py. BCC's event() knows
 * flat integers and texts only, so the process is spelled out. */
#include <linux/types.h>
#include <uapi/linux/ptrace.h>

struct bench_record {
	u64 t_ns;
	u32 pid;
	u32 tid;
	u64 proc_start_ns;
	u64 cgroup_id;
	char comm[16];
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
	r->pid = r->tid = 1;
	r->number = r->t_ns & 7;
	records.ringbuf_submit(r, BPF_RB_NO_WAKEUP);
	return 0;
}
