/* The CPU that answers a SYN at the moment: from the segment's arrival to the SYN-ACK's departure, all in one softirq.
 * bpf/synack.bpf.c writes it, bpf/contention.bpf.c reads it. */
#ifndef SYNACK_OPEN_NS
#define SYNACK_OPEN_NS 1000000000	/* an unanswered one is dropped after this */

struct synack_at {
	u64 since_ns;
};
BPF_TABLE("percpu_array", u32, struct synack_at, synack_at, 1);

static __always_inline bool synack_answering(u64 now)
{
	u32 zero = 0;
	struct synack_at *at = synack_at.lookup(&zero);
	return at && at->since_ns && now - at->since_ns < SYNACK_OPEN_NS;
}
#endif
