/* A socket's smoothed RTT, as the kernel keeps it, sampled: once with the handshake's, then whenever the socket receives, behind a gate.
 * Part of the tcp family, after tcp_socket.h. */

static __always_inline struct tcp_rtt_value *tcp_rtt_new(bool slot, struct tcp_rtt_key *key)
{
	u32 zero = 0;
	struct tcp_rtt_value *nothing = tcp_rtt_zero.lookup(&zero);
	if (!nothing)
		return 0;
	if (slot ? tcp_rtt_b.insert(key, nothing) : tcp_rtt_a.insert(key, nothing)) {
		lose(slot ? LOST_tcp_rtt_b : LOST_tcp_rtt_a);
		return 0;
	}
	return tcp_rtt_of(slot, key);
}

/* What the gate of a socket holds while no other sample is due. */
static __always_inline u32 tcp_gate(u64 sk)
{
	return tcp_mixed(sk, bpf_jiffies64() >> TCP_RTT_GATE_SHIFT);
}

/* One sample of a socket's RTT; false where the kernel has none yet. */
static __always_inline bool tcp_sample(void *sk, struct tcp_socket *s)
{
	struct tcp_rtt_value *v;
	u32 rtt = 0;
	GET(rtt, sk, tcp_sock, srtt_us);
	rtt >>= 3;
	if (!rtt)
		return false;
	s->sampled = 1;
	struct tcp_rtt_key id = {.id = s->sock.sock_id};
	bool slot = tcp_slot();
	v = tcp_rtt_of(slot, &id);
	if (!v)
		v = tcp_rtt_new(slot, &id);
	if (!v)
		return true;
	v->proc = s->proc;
	if (!v->samples) {
		v->sock = s->sock;
		v->rtt_min_us = rtt;
	}
	v->samples++;
	v->rtt_sum_us += rtt;
	v->srtt_us = rtt;
	if (rtt < v->rtt_min_us)
		v->rtt_min_us = rtt;
	if (rtt > v->rtt_max_us)
		v->rtt_max_us = rtt;
	v->buckets[log2_bucket(rtt) & (TCP_RTT_BUCKETS - 1)]++;
	return true;
}
