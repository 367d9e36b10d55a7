/* Name look-ups: process, server, name, duration and result. Kernel 5.8 (ring buffer). Driven by agent/probes/dns.py.
 *
 * Uprobes at getaddrinfo of each C library, and at Go's own resolver, report name, time and error; programs without
 * look-ups have no cost. The server, its missing answers and its result code are seen where the thread waits
 * (dns_waited, called by bpf/syscalls.bpf.c): a socket's answer is in its queue when the waiting thread gets its CPU.
 * So blocking resolvers without that function (a program's own, a static one) are seen too. Resolvers that wait for
 * several descriptors at once (c-ares, systemd-resolved) are not. */

#define DNS_OPEN 1
#define DNS_PORT 53
#define DNS_NUMERICHOST 4
#ifndef DNS_LEAST_NS
#define DNS_LEAST_NS 200000
#endif
#ifndef DNS_SILENT_NS
#define DNS_SILENT_NS 500000000
#endif

#define DNS_EACH_NS 2000000		/* of a user's lookups */
#define DNS_MOST 256
#define DNS_CALLS_EACH_NS 20000000	/* open lookups of that user */
#define DNS_CALLS_MOST 512
#define DNS_GO_CALLS_EACH_NS 40000000

enum { DNS_GETADDRINFO, DNS_SOCKET, DNS_GO };	/* order of the table's `source` */

struct dns_event {
	u64 t_ns;		/* the end */
	struct proc proc;
	u64 duration_ns;
	s32 code;		/* getaddrinfo's result */
	u32 uid;
	u16 unanswered;		/* waits that ended without an answer */
	u16 answered;
	u16 refused;		/* by the server's kernel: no process listens */
	u16 peer_port;
	u8 peer_addr[16];
	u8 family;		/* the requested one, AF_* */
	u8 rcode;		/* of the last answer */
	u8 source;
	u8 pad[5];
	char name[128];		/* a string; for DNS_SOCKET the answer's question, as in the packet */
	char problem[64];	/* of DNS_GO: net.DNSError's Err and Server */
	char server[64];
};
BPF_RINGBUF_OUTPUT(dns_events, 128);	/* has room for all shares */

struct dns_call {		/* a thread that is inside getaddrinfo */
	u64 start_ns;
	u64 node;
	u16 unanswered;
	u16 answered;
	u16 refused;
	u16 peer_port;
	u8 peer_addr[16];
	u8 family;
	u8 rcode;
	u8 pad[6];
};
BPF_TABLE("lru_hash", u32, struct dns_call, dns_calls, 4096);

int dns_in(struct pt_regs *ctx)
{
	on_own_stack(ctx);
	u64 id = bpf_get_current_pid_tgid();
	u32 tid = id, hints[2] = {};
	struct dns_call call = {.start_ns = bpf_ktime_get_boot_ns(), .node = reg_arg1(ctx), .rcode = UNKNOWN8};
	struct control *c = get_control();
	if (!call.node || !c || id >> 32 == c->agent_pid)
		return 0;
	if (reg_arg3(ctx))
		bpf_probe_read_user(hints, sizeof(hints), (void *)reg_arg3(ctx));
	if (hints[0] & DNS_NUMERICHOST)
		return 0;	/* an address: parsed, no server is asked */
	call.family = hints[1];
	if (!dns_calls.lookup(&tid) && over_share(uid_of(current_task()), SHARE_DNS_CALLS, DNS_CALLS_EACH_NS, DNS_CALLS_MOST))
		lose(LOST_dns_shares);
	else if (dns_calls.update(&tid, &call))
		lose(LOST_dns_events);
	return 0;
}

int dns_out(struct pt_regs *ctx)
{
	on_own_stack(ctx);
	u32 tid = bpf_get_current_pid_tgid();
	u64 now = bpf_ktime_get_boot_ns();
	struct dns_call *call = dns_calls.lookup(&tid);
	if (!call)
		return 0;
	s32 code = reg_return(ctx);
	u64 took = now - call->start_ns;
	u32 uid = uid_of(current_task());
	if (!code && took < DNS_LEAST_NS)
		goto out;	/* an address, or known without a query */
	if (over_share(uid, SHARE_DNS, DNS_EACH_NS, DNS_MOST)) {
		lose(LOST_dns_shares);
		goto out;
	}
	struct dns_event *e = dns_events.ringbuf_reserve(sizeof(*e));
	if (!e) {
		lose(LOST_dns_events);
		goto out;
	}
	__builtin_memset(e, 0, sizeof(*e));
	fill_proc(&e->proc, (void *)bpf_get_current_task());
	e->t_ns = now;
	e->duration_ns = took;
	e->code = code;
	e->uid = uid;
	e->unanswered = call->unanswered;
	e->answered = call->answered;
	e->refused = call->refused;
	e->peer_port = call->peer_port;
	__builtin_memcpy(e->peer_addr, call->peer_addr, 16);
	e->family = call->family;
	e->rcode = call->rcode;
	e->source = DNS_GETADDRINFO;
	bpf_probe_read_user_str(e->name, sizeof(e->name), (void *)call->node);
	dns_events.ringbuf_submit(e, QUIET);
out:
	dns_calls.delete(&tid);
	give_share_back(uid, SHARE_DNS_CALLS, DNS_CALLS_EACH_NS);
	return 0;
}

struct dns_go_key {
	u64 goroutine;
	u32 tgid;
	u32 pad;
};

struct dns_go_call {
	u64 start_ns;
	u64 at;			/* the name's bytes, and their number */
	u64 len;
	char name[128];
};
BPF_TABLE("lru_hash", struct dns_go_key, struct dns_go_call, dns_go_calls, 2048);

/* Copies a Go string into a buffer of `most` bytes, a power of two, the last one left zero. */
#define DNS_GO_STRING(to, at, len, most) ({						\
	u32 _n = (len) < (most) ? (u32)(len) : (most) - 1;				\
	asm volatile("" : "+r"(_n));							\
	bpf_probe_read_user(to, _n & ((most) - 1), (void *)(at));			\
})

/* func (r *Resolver) goLookupIPCNAMEOrder(ctx context.Context, network, name string, ...) (addrs []IPAddr, cname dnsmessage.Name, err error) */
int dns_go_in(struct pt_regs *ctx)
{
	on_own_stack(ctx);
	struct dns_go_key key = {.goroutine = go_goroutine(ctx), .tgid = bpf_get_current_pid_tgid() >> 32};
	struct dns_go_call call = {.start_ns = bpf_ktime_get_boot_ns(), .at = go_word(ctx, 5), .len = go_word(ctx, 6)};
	struct dns_go_call *old = dns_go_calls.lookup(&key);
	if (old && old->at == call.at && old->len == call.len)
		call.start_ns = old->start_ns;	/* begun again: its stack had to grow */
	DNS_GO_STRING(call.name, call.at, call.len, 128);
	if (!old && over_share(uid_of(current_task()), SHARE_DNS_GO_CALLS, DNS_GO_CALLS_EACH_NS, DNS_CALLS_MOST))
		lose(LOST_dns_shares);
	else if (dns_go_calls.update(&key, &call))
		lose(LOST_dns_events);
	return 0;
}

/* A RET of it: cname is on the stack, so err is in the registers after addrs. */
int dns_go_out(struct pt_regs *ctx)
{
	on_own_stack(ctx);
	struct dns_go_key key = {.goroutine = go_goroutine(ctx), .tgid = bpf_get_current_pid_tgid() >> 32};
	u64 now = bpf_ktime_get_boot_ns(), error[8] = {}, problem = 0, problems = 0, server = 0, servers = 0;
	struct dns_go_call *call = dns_go_calls.lookup(&key);
	if (!call)
		return 0;
	u64 took = now - call->start_ns;
	bool failed = go_word(ctx, 3) != 0;
	u32 uid = uid_of(current_task());
	if (!failed && took < DNS_LEAST_NS)
		goto out;
	if (over_share(uid, SHARE_DNS, DNS_EACH_NS, DNS_MOST)) {
		lose(LOST_dns_shares);
		goto out;
	}
	struct dns_event *e = dns_events.ringbuf_reserve(sizeof(*e));
	if (!e) {
		lose(LOST_dns_events);
		goto out;
	}
	__builtin_memset(e, 0, sizeof(*e));
	fill_proc(&e->proc, (void *)bpf_get_current_task());
	e->proc.tid = UNKNOWN32;	/* a goroutine has no thread of its own */
	e->t_ns = now;
	e->duration_ns = took;
	e->code = failed ? -1 : 0;
	e->uid = uid;
	e->rcode = UNKNOWN8;
	e->source = DNS_GO;
	__builtin_memcpy(e->name, call->name, sizeof(e->name));
	if (failed && !bpf_probe_read_user(error, sizeof(error), (void *)go_word(ctx, 4))) {
		if (error[4] == call->at) {		/* UnwrapErr, Err, Name, Server since go1.23 */
			problem = error[2], problems = error[3], server = error[6], servers = error[7];
		} else if (error[2] == call->at) {	/* Err, Name, Server */
			problem = error[0], problems = error[1], server = error[4], servers = error[5];
		}
	}
	DNS_GO_STRING(e->problem, problem, problems, 64);
	DNS_GO_STRING(e->server, server, servers, 64);
	dns_events.ringbuf_submit(e, QUIET);
out:
	dns_go_calls.delete(&key);
	give_share_back(uid, SHARE_DNS_GO_CALLS, DNS_GO_CALLS_EACH_NS);
	return 0;
}

/* `task` waited for a socket whose peer is a name server, from `from` until it got its CPU back at `now`. */
static __always_inline void dns_waited(void *task, u32 tid, void *sk, const u8 *peer_addr, u64 from, u64 now)
{
	u16 protocol = 0, port = 0;
	u32 err = 0, len = 0, paged = 0;
	u8 head[4] = {}, rcode = UNKNOWN8;
	void *first = 0, *data = 0;
	const char *queue = ADDR(sk, sock, sk_receive_queue);
	GET(protocol, sk, sock, sk_protocol);
	GET(port, sk, sock_common, skc_dport);
	if (port != __builtin_bswap16(DNS_PORT))
		return;	/* closed, and another one's by now */
	struct dns_call *call = dns_calls.lookup(&tid);
	bool by_udp = protocol == 17;
	if (by_udp) {
		GET(err, sk, sock, sk_err);
		bpf_probe_read_kernel(&first, sizeof(first), queue);
		if (first == queue)
			first = 0;
	}
	if (first) {
		GET(len, first, sk_buff, len);
		GET(paged, first, sk_buff, data_len);
		data = PTR(first, sk_buff, data);
		if (len - paged >= 17 && len >= paged)
			bpf_probe_read_kernel(head, sizeof(head), data);
		if (head[2] & 0x80)
			rcode = head[3] & 15;
	}
	if (call) {
		call->peer_port = DNS_PORT;
		__builtin_memcpy(call->peer_addr, peer_addr, 16);
		if (first) {
			call->answered++;
			call->rcode = rcode;
		} else if (err) {
			call->refused++;
		} else if (by_udp) {
			call->unanswered++;
		}
		return;
	}
	if (!by_udp || (!first && !err && now - from < DNS_SILENT_NS) || (rcode == 0 && now - from < DNS_LEAST_NS))
		return;
	u32 uid = uid_of(task);
	if (over_share(uid, SHARE_DNS, DNS_EACH_NS, DNS_MOST)) {
		lose(LOST_dns_shares);
		return;
	}
	struct dns_event *e = dns_events.ringbuf_reserve(sizeof(*e));
	if (!e) {
		lose(LOST_dns_events);
		return;
	}
	__builtin_memset(e, 0, sizeof(*e));
	fill_proc(&e->proc, task);
	e->t_ns = now;
	e->duration_ns = now - from;
	e->uid = uid;
	e->answered = !!first;
	e->refused = !first && err;
	e->unanswered = !first && !err;
	e->peer_port = DNS_PORT;
	__builtin_memcpy(e->peer_addr, peer_addr, 16);
	e->rcode = rcode;
	e->source = DNS_SOCKET;
	if (rcode != UNKNOWN8) {
		u32 named = len - paged - 12;
		if (named > sizeof(e->name) - 1)
			named = sizeof(e->name) - 1;
		asm volatile("" : "+r"(named));	/* so that the verifier sees the bound */
		bpf_probe_read_kernel(e->name, named & (sizeof(e->name) - 1), (const char *)data + 12);
	}
	dns_events.ringbuf_submit(e, QUIET);
}
