/* Data of a socket or a segment: state, both ends, what was sent. First in the family of bpf/tcp.bpf.c. */
#define TCP_SOCK_DONE 2		/* 1 << SOCK_DONE of enum sock_flags: the peer's FIN was received */

enum { TCP_ROLE_CLIENT, TCP_ROLE_SERVER };
enum { TCP_ESTABLISHED = 1, TCP_SYN_SENT, TCP_SYN_RECV, TCP_FIN_WAIT1, TCP_FIN_WAIT2, TCP_TIME_WAIT, TCP_CLOSE, TCP_CLOSE_WAIT,
       TCP_LAST_ACK, TCP_LISTEN, TCP_CLOSING, TCP_NEW_SYN_RECV };

static __always_inline u32 tcp_netns(void *net)
{
	u32 inum = UNKNOWN32;
	if (net)
		GET(inum, ADDR(net, net, ns), ns_common, inum);
	return inum;
}

static __always_inline u8 tcp_state_of(void *sk)
{
	u8 state = 0;
	GET(state, sk, sock_common, skc_state);
	return state;
}

static __always_inline bool tcp_owned(void *sk)
{
	u32 owned = 0;
	GET(owned, sk, sock, owned);
	return owned;
}

static __always_inline void tcp_mapped(u8 *to, const void *ipv4)
{
	__builtin_memset(to, 0, 10);
	to[10] = to[11] = 0xff;
	bpf_probe_read_kernel(to + 12, 4, ipv4);
}

/* Both ends and the namespace of anything that starts with a sock_common: a socket, a request, a TIME_WAIT. */
static __always_inline void tcp_tuple(struct sock_ref *r, void *sk)
{
	u16 family = 0, dport = 0, sport = 0;
	u8 state = tcp_state_of(sk);
	GET(family, sk, sock_common, skc_family);
	GET(dport, sk, sock_common, skc_dport);
	GET(sport, sk, sock_common, skc_num);
	if (!sport && state != TCP_TIME_WAIT && state != TCP_NEW_SYN_RECV) {
		GET(sport, sk, inet_sock, inet_sport);	/* CLOSE releases the port before it is traced */
		sport = __builtin_bswap16(sport);
	}
	r->netns = tcp_netns(PTR(sk, sock_common, skc_net));
	r->sport = sport;
	r->dport = __builtin_bswap16(dport);
	r->family = 0;
#if HAS_sock_common__skc_v6_daddr
	if (family == 10) {
		u64 high = 1;
		u32 low = 0;
		GET(r->saddr, sk, sock_common, skc_v6_rcv_saddr);
		GET(r->daddr, sk, sock_common, skc_v6_daddr);
		GET(high, sk, sock_common, skc_v6_daddr);
		bpf_probe_read_kernel(&low, 4, ADDR(sk, sock_common, skc_v6_daddr) + 8);
		r->family = high || low != 0xffff0000;	/* v4-mapped is IPv4 on the wire */
		return;
	}
#endif
	tcp_mapped(r->saddr, ADDR(sk, sock_common, skc_rcv_saddr));
	tcp_mapped(r->daddr, ADDR(sk, sock_common, skc_daddr));
}

/* Both ends, from the view of a segment's receiver. */
static __always_inline void tcp_tuple_of_segment(struct sock_ref *r, void *skb)
{
	u16 network = 0, transport = 0, ports[2] = {};
	u8 version = 0;
	char *head = PTR(skb, sk_buff, head);
	void *dev = PTR(skb, sk_buff, dev);
	GET(network, skb, sk_buff, network_header);
	GET(transport, skb, sk_buff, transport_header);
	bpf_probe_read_kernel(&version, 1, head + network);
	bpf_probe_read_kernel(ports, 4, head + transport);
	r->dport = __builtin_bswap16(ports[0]);
	r->sport = __builtin_bswap16(ports[1]);
	r->family = version >> 4 == 6;
	if (r->family) {
		bpf_probe_read_kernel(r->daddr, 16, head + network + 8);
		bpf_probe_read_kernel(r->saddr, 16, head + network + 24);
	} else {
		tcp_mapped(r->daddr, head + network + 12);
		tcp_mapped(r->saddr, head + network + 16);
	}
	if (dev)
		r->netns = tcp_netns(PTR(dev, net_device, nd_net));
}

static __always_inline u64 tcp_cookie(void *sk, u64 otherwise)
{
	u64 cookie = 0;
	GET(cookie, sk, sock_common, skc_cookie);
	return cookie ? cookie : otherwise;
}

struct tcp_sent {
	u64 acked;		/* bytes_acked without the FIN; with the SYN where this end connected */
	u8 role;
};

/* The kernel counts a client's SYN and the FIN as acknowledged bytes, but not as sent ones, which shows the role. */
static __always_inline void tcp_account(struct tcp_sent *a, void *sk, u8 state)
{
	u64 sent = 0, again = 0;
	u32 una = 0, next = 0, end = 0;
	bool fin = state == TCP_FIN_WAIT1 || state == TCP_FIN_WAIT2 || state == TCP_CLOSING || state == TCP_LAST_ACK;
	GET(a->acked, sk, tcp_sock, bytes_acked);
	GET(sent, sk, tcp_sock, bytes_sent);
	GET(again, sk, tcp_sock, bytes_retrans);
	GET(una, sk, tcp_sock, snd_una);
	GET(next, sk, tcp_sock, snd_nxt);
	GET(end, sk, tcp_sock, write_seq);
	if (fin && una == end)
		a->acked--;
	u32 flying = next - una - (fin && una != end && next == end);
	u64 syn = a->acked - (sent - again - flying);
	a->role = syn == 1 ? TCP_ROLE_CLIENT : syn == 0 ? TCP_ROLE_SERVER : UNKNOWN8;
}
