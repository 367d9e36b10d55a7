/* How long this host takes from the arrival of a SYN to the SYN-ACK: by local port. Attached for seconds only, since
 * every packet passes here. Kernel 5.8. Driven by agent/investigate/. A SYN that arrives again before its answer counts
 * from the first one. */

#define SYNACK_TCP 6
#define SYNACK_SYN 0x02
#define SYNACK_ACK 0x10

struct synack_pair {
	u8 peer[16];
	u16 peer_port;
	u16 port;
	u32 pad;
};
BPF_TABLE("lru_hash", struct synack_pair, u64, synack_syns, 4096);	/* its arrival */

struct synack_key {
	u32 port;
	u32 netns;
};
struct synack_value {
	u64 count;
	u64 sum_ns;
	u64 max_ns;
	u32 hist[64];
};
BPF_TABLE("hash", struct synack_key, struct synack_value, synack_sums, 256);
BPF_TABLE("array", u32, struct synack_value, synack_zero, 1);

/* Flags of a TCP segment, 0 for anything else; and its remote end, with `ours` as the local side. */
static __always_inline u8 synack_read(void *skb, bool incoming, struct synack_pair *p)
{
	u16 at = 0, ports[2] = {};
	u8 head[40] = {}, flags = 0, version;
	const char *data = (const char *)PTR(skb, sk_buff, head);
	READ(at, skb, sk_buff, network_header);
	if (bpf_probe_read_kernel(head, sizeof(head), data + at))
		return 0;
	version = head[0] >> 4;
	u32 length = version == 4 ? (head[0] & 15) * 4 : 40;
	if ((version == 4 ? head[9] : version == 6 ? head[6] : 0) != SYNACK_TCP)
		return 0;
	if (bpf_probe_read_kernel(&flags, 1, data + at + length + 13) || !(flags & SYNACK_SYN))
		return 0;
	bpf_probe_read_kernel(ports, sizeof(ports), data + at + length);
	__builtin_memset(p, 0, sizeof(*p));
	if (version == 4)
		__builtin_memcpy(p->peer + 12, incoming ? head + 12 : head + 16, 4);
	else
		__builtin_memcpy(p->peer, incoming ? head + 8 : head + 24, 16);
	p->peer_port = __builtin_bswap16(incoming ? ports[0] : ports[1]);
	p->port = __builtin_bswap16(incoming ? ports[1] : ports[0]);
	return flags;
}

static __always_inline u32 synack_netns(void *skb)
{
	u32 inum = 0;
	READ(inum, PTR(PTR(skb, sk_buff, dev), net_device, nd_net), net, inum);
	return inum;
}

int synack_on_receive(struct bpf_raw_tracepoint_args *ctx)
{
	u64 now = bpf_ktime_get_boot_ns();
	struct synack_pair p;
	u32 zero = 0;
	if (!profile_control(now))
		return 0;
	struct synack_at *at = synack_at.lookup(&zero);
	u8 flags = synack_read((void *)ctx->args[0], true, &p);
	if (at)
		at->since_ns = 0;
	if ((flags & (SYNACK_SYN | SYNACK_ACK)) != SYNACK_SYN)
		return 0;
	synack_syns.insert(&p, &now);
	if (at)
		at->since_ns = now;
	return 0;
}

int synack_on_send(struct bpf_raw_tracepoint_args *ctx)
{
	u64 now = bpf_ktime_get_boot_ns();
	void *skb = (void *)ctx->args[0];
	struct synack_pair p;
	u32 zero = 0;
	if (!profile_control(now) || (synack_read(skb, false, &p) & (SYNACK_SYN | SYNACK_ACK)) != (SYNACK_SYN | SYNACK_ACK))
		return 0;
	struct synack_at *at = synack_at.lookup(&zero);
	if (at)
		at->since_ns = 0;
	u64 *came = synack_syns.lookup(&p);
	if (!came)
		return 0;
	u64 ns = now - *came;
	synack_syns.delete(&p);
	struct synack_key key = {.port = p.port, .netns = synack_netns(skb)};
	struct synack_value *v = synack_sums.lookup(&key), *none = synack_zero.lookup(&zero);
	if (!v && none) {
		synack_sums.insert(&key, none);
		v = synack_sums.lookup(&key);
	}
	if (!v) {
		lose(LOST_synack_sums);
		return 0;
	}
	__sync_fetch_and_add(&v->count, 1);
	__sync_fetch_and_add(&v->sum_ns, ns);
	if (ns > v->max_ns)
		v->max_ns = ns;
	__sync_fetch_and_add(&v->hist[log2_bucket(ns)], 1);
	return 0;
}
