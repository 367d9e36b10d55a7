/* Which processor answers a SYN just now: between the arrival of the segment and the SYN-ACK's way out, all in one softirq. For bpf/synack.bpf.c,
 * which keeps it, and bpf/contention.bpf.c, which asks. */
#ifndef SYNACK_OPEN_NS
#define SYNACK_OPEN_NS 1000000000	/* one that was never answered is forgotten after that */

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
