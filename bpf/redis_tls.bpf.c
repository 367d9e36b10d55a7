/* What Redis is asked, and answers, through OpenSSL: probes on SSL_write and SSL_read of the few processes that are known to talk to a Redis, or to be one, and of no
 * other (a link a process: kernel 6.10). Driven by agent/probes/beside/redis_tls.py. What is handed over, and when, is as of plain connections (bpf/redis_stream.h).
 *
 * A client's SSL object is of interest from the first request on that begins with a limiter's command: until then a call costs its trap, and 64 bytes that are
 * looked at. Which connection it is the descriptor in its BIO tells. Where both ends are on this host and have probes, the client's tell; over loopback the agent
 * leaves the client alone once the server's are there. */
/* Whether a text may begin a request that is of interest. */
static __always_inline bool redis_tls_begins(u64 text, u32 size)
{
	u8 head[REDIS_HEAD] __attribute__((aligned(8))) = {};
	u32 zero = 0;
	struct redis_switch *w = redis_switch.lookup(&zero);
	u64 n = redis_most(size, REDIS_HEAD);
	if (!w || bpf_probe_read_user(head, n, (void *)text) || head[0] != '*')
		return false;
	return w->samples || redis_what(head, w);
}

static __always_inline int redis_tls_enter(struct pt_regs *ctx, u32 kind, bool counted, u32 size)
{
	u64 id = bpf_get_current_pid_tgid();
	struct redis_tls_key key = {.ssl = PT_REGS_PARM1(ctx), .pid = id >> 32};
	struct redis_tls_call call = {.ssl = key.ssl, .buffer = PT_REGS_PARM2(ctx), .size = size, .kind = kind};
	struct redis_tls_process *p = redis_tls_process_of(key.pid);
	if (!p || !size)
		return 0;
	bool request = (kind == REDIS_TLS_READ) == !!p->server;
	if (!redis_tls_connections.lookup(&key)) {
		if (!request)
			return 0;
		if (kind == REDIS_TLS_WRITE && (!redis_tls_begins(call.buffer, size) || !redis_tls_begin(p, &key)))
			return 0;
	}
	call.count = counted ? PT_REGS_PARM4(ctx) : 0;
	call.now = bpf_ktime_get_boot_ns();
	redis_tls_calls.update(&id, &call);
	return 0;
}

int redis_tls_write(struct pt_regs *ctx)
{
	on_own_stack(ctx);
	s32 size = PT_REGS_PARM3(ctx);
	return redis_tls_enter(ctx, REDIS_TLS_WRITE, false, size > 0 ? size : 0);
}

int redis_tls_write_ex(struct pt_regs *ctx)
{
	on_own_stack(ctx);
	u64 size = PT_REGS_PARM3(ctx);
	return redis_tls_enter(ctx, REDIS_TLS_WRITE, true, redis_most(size, 1 << 30));
}

int redis_tls_read(struct pt_regs *ctx)
{
	on_own_stack(ctx);
	s32 size = PT_REGS_PARM3(ctx);
	return redis_tls_enter(ctx, REDIS_TLS_READ, false, size > 0 ? size : 0);
}

int redis_tls_read_ex(struct pt_regs *ctx)
{
	on_own_stack(ctx);
	u64 size = PT_REGS_PARM3(ctx);
	return redis_tls_enter(ctx, REDIS_TLS_READ, true, redis_most(size, 1 << 30));
}

/* Whether the client's end of a server's connection tells of it. */
static __always_inline bool redis_tls_told(struct redis_tls_connection *c)
{
	u32 *pid = c->tuple ? redis_tls_clients.lookup(&c->tuple) : 0;
	return pid && redis_tls_process_of(*pid);
}

int redis_tls_return(struct pt_regs *ctx)
{
	on_own_stack(ctx);
	u64 id = bpf_get_current_pid_tgid(), count = 0;
	u32 zero = 0, done = 0;
	s32 result = PT_REGS_RC(ctx);
	struct redis_tls_call *in = redis_tls_calls.lookup(&id);
	if (!in)
		return 0;
	struct redis_tls_call call = *in;
	redis_tls_calls.delete(&id);
	if (result <= 0)
		return 0;
	count = result;
	if (call.count && bpf_probe_read_user(&count, 8, (void *)call.count))
		return 0;
	struct redis_tls_key key = {.ssl = call.ssl, .pid = id >> 32};
	struct redis_tls_process *p = redis_tls_process_of(key.pid);
	struct redis_switch *w = redis_switch.lookup(&zero);
	if (!p || !w)
		return 0;
	struct redis_tls_connection *c = redis_tls_connections.lookup(&key);
	if (!c) {	/* a server's */
		if (!redis_tls_begins(call.buffer, redis_most(count, call.size)))
			return 0;
		c = redis_tls_begin(p, &key);
		if (!c)
			return 0;
	}
	if (p->server && redis_tls_told(c))
		return 0;
	struct redis_stream s = {.from = (const char *)call.buffer, .flow = c->flow, .uid = p->uid, .at_server = p->server};
	s.size = s.readable = redis_most(count, call.size);
	s.reply = (call.kind == REDIS_TLS_WRITE) == !!p->server;
	s.now = call.kind == REDIS_TLS_WRITE ? call.now : bpf_ktime_get_boot_ns();
	struct redis_part part;
	struct redis_flow *f = redis_stream_part(REDIS_USER, w, &s, &part);
	if (!f)
		return 0;
#pragma clang loop unroll(disable)
	for (int i = 0; i < REDIS_PIECES; i++) {
		struct redis_piece *e = redis_stream_piece(REDIS_USER, w, &s, &part, f, done);
		if (!e)
			break;
		e->netns = c->netns;
		e->server_port = c->server_port;
		e->client_port = c->client_port;
		if (!i) {	/* the others have what the first has */
			__builtin_memcpy(e->server, c->server, 16);
			__builtin_memcpy(e->client, c->client, 16);
			fill_proc(&e->proc, (void *)bpf_get_current_task());
		}
		done += *(volatile u16 *)&e->size;
		redis_pieces.ringbuf_submit(e, QUIET);
	}
	return 0;
}

int redis_tls_free(struct pt_regs *ctx)
{
	on_own_stack(ctx);
	struct redis_tls_key key = {.ssl = PT_REGS_PARM1(ctx), .pid = bpf_get_current_pid_tgid() >> 32};
	struct redis_tls_connection *c = redis_tls_connections.lookup(&key);
	struct redis_tls_process *p = redis_tls_process_of(key.pid);
	redis_tls_refused.delete(&key);
	if (!c)
		return 0;
	u64 tuple = c->tuple;
	if (p && !p->server && tuple)
		redis_tls_clients.delete(&tuple);
	if (redis_tls_connections.delete(&key) || !p)
		return 0;
	redis_tls_own(p->uid, -1);
	if (p->connections)
		__sync_fetch_and_add(&p->connections, -1);
	return 0;
}

/* Who connects to a Redis port: the agent looks whether there is an OpenSSL in it. */
int redis_tls_connect(struct bpf_raw_tracepoint_args *ctx)
{
	void *sk = (void *)ctx->args[0];
	u16 port = 0;
	if ((u32)ctx->args[2] != REDIS_SYN_SENT)
		return 0;
	READ(port, sk, sock_common, skc_dport);
	if (!redis_port(__builtin_bswap16(port)))
		return 0;
	u32 pid = bpf_get_current_pid_tgid() >> 32, uid = uid_of((void *)bpf_get_current_task());
	struct control *control = get_control();
	if (!control || pid == control->agent_pid || redis_tls_process_of(pid) || over_share(uid, SHARE_REDIS_TLS, REDIS_TLS_EACH_NS, REDIS_TLS_MOST))
		return 0;
	struct redis_tls_user *e = redis_tls_users.ringbuf_reserve(sizeof(*e));
	if (!e) {
		lose(LOST_redis_tls_users);
		return 0;
	}
	e->t_ns = bpf_ktime_get_boot_ns();
	u64 to[2] = {};
	u16 family = 0;
	READ(family, sk, sock_common, skc_family);
	redis_tls_address((u8 *)to, sk, family == REDIS_AF_INET6, false);
	READ(e->netns, ADDR(PTR(sk, sock_common, skc_net), net, ns), ns_common, inum);
	e->loopback = !to[0] && (to[1] == 0x0100000000000000ull || (to[1] & 0xffffffffffull) == 0x7fffff0000ull);	/* ::1, ::ffff:127.0.0.0/104 */
	e->port = __builtin_bswap16(port);
	e->uid = uid;
	e->pad = 0;
	fill_proc(&e->proc, (void *)bpf_get_current_task());
	redis_tls_users.ringbuf_submit(e, WAKE);
	return 0;
}
