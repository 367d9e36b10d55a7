/* A socket's smoothed RTT, as the kernel keeps it, sampled: once at the handshake, then at receives, limited by a gate.
 * Part of the tcp family, after tcp_socket.h. */

static __always_inline struct tcp_rtt_value *tcp_rtt_new(bool slot, struct tcp_rtt_key *key, u32 uid)
{
	u32 zero = 0;
	if (over_share(uid, SHARE_RTT, TCP_RTT_EACH_NS, TCP_RTT_MOST)) {
		lose(LOST_tcp_shares);
		return 0;
	}
	struct tcp_rtt_value *nothing = tcp_rtt_zero.lookup(&zero);
	if (!nothing)
		return 0;
	if (slot ? tcp_rtt_b.insert(key, nothing) : tcp_rtt_a.insert(key, nothing)) {
		lose(slot ? LOST_tcp_rtt_b : LOST_tcp_rtt_a);
		return 0;
	}
	return tcp_rtt_of(slot, key);
}

/* The content of a socket's gate while no other sample is due. */
static __always_inline u32 tcp_gate(u64 sk)
{
	return tcp_mixed(sk, bpf_jiffies64() >> TCP_RTT_GATE_SHIFT);
}

/* Segments sent since the last sample, retransmitted ones, and those that the peer reported as duplicates (DSACK); and
 * the last unsmoothed round trip of a single segment (RACK's), only if it was measured since: RACK measures nothing
 * where the peer acknowledges the first copy of a segment that was retransmitted. */
static __always_inline void tcp_progress(struct tcp_rtt_value *v, struct tcp_socket *s, void *sk)
{
	u32 sent = s->sent, again = s->again, doubled = s->doubled, measured = s->measured;
	tcp_sent_so_far(s, sk);
	v->segments += s->sent - sent;
	v->again += s->again - again;
	v->doubled += s->doubled - doubled;
#if HAS_tcp_sock__rack && HAS_tcp_rack__rtt_us && HAS_tcp_rack__mstamp
	u32 raw = 0;
	GET(raw, ADDR(sk, tcp_sock, rack), tcp_rack, rtt_us);
	if (!raw || s->measured == measured)
		return;
	if (raw < v->raw_min_us)
		v->raw_min_us = raw;
	if (raw > v->raw_max_us)
		v->raw_max_us = raw;
#endif
}

/* Takes one sample of a socket's RTT; false if the kernel has none yet. */
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
		v = tcp_rtt_new(slot, &id, s->charged_uid);
	if (!v)
		return true;
	v->proc = s->proc;
	if (!v->samples) {
		v->sock = s->sock;
		v->rtt_min_us = rtt;
		v->raw_min_us = UNKNOWN32;
	}
	tcp_progress(v, s, sk);
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
