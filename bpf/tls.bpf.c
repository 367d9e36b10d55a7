/* TLS handshakes of OpenSSL: one record each, however many calls it took. Uprobes on functions that run in every handshake and never
 * on established data (agent/kernel/openssl.py finds them); kernel 5.8 (ring buffer). Driven by agent/probes/tls.py.
 *
 * Offsets differ between OpenSSL versions, and several may run on one host. Which one a call belongs to is told by the code itself:
 * where the function lies in its page, and 60 bytes of that page (tls_code). The agent fills tls_sites and tls_layouts before it
 * attaches, so a process that starts now is understood at once. */

struct tls_event {
	u64 t_ns;		/* the end */
	struct proc proc;
	struct sock_ref sock;
	u64 duration_ns;
	u64 in_call_ns;
	u32 calls;
	u16 protocol;		/* as in a TLS record, 0 unknown */
	u8 result;
	u8 cause;		/* of a failure: TLS_FATAL, TLS_CLOSED */
	u32 verify_result;	/* X509_V_ERR_*, 0 ok or unknown */
	u32 pad;
	char library[16];
	char library_version[32];
};

struct tls_exit_event {
	u64 t_ns;
	struct proc proc;
};

struct tls_code {
	u32 page_offset;
	u8 code[60];
};

struct tls_layout {		/* byte offsets into an SSL, negative for unknown */
	s32 version;
	s32 rwstate;
	s32 flow;
	s32 rbio;
	s32 verify_result;
	s32 bio_flags;		/* into a BIO */
	char library[16];
	char library_version[32];
};

struct tls_key {
	u64 ssl;
	u32 pid;
	u32 pad;
};

struct tls_open {		/* a handshake that is going on */
	u64 start_ns;
	u64 in_call_ns;
	struct sock_ref sock;
	u32 calls;
	u32 layout;		/* element of tls_layouts, UNKNOWN32 for none */
	u32 tid;		/* of the last call */
	u32 pad;
};

struct tls_inside {		/* a thread that is inside a call */
	u64 ssl;
	u64 enter_ns;
	u32 nested;
	u32 pad;
};

BPF_RINGBUF_OUTPUT(tls_events, 64);
BPF_RINGBUF_OUTPUT(tls_exits, 4);
BPF_TABLE("hash", struct tls_code, u32, tls_sites, 1024);
BPF_TABLE("array", u32, struct tls_layout, tls_layouts, 256);
BPF_TABLE("hash", struct tls_key, struct tls_open, tls_opened, 16384);
BPF_TABLE("lru_hash", struct tls_key, u8, tls_done, 16384);	/* only where the message flow state cannot be read */
BPF_TABLE("hash", u32, struct tls_inside, tls_insides, 4096);
BPF_TABLE("hash", u32, u64, tls_busy, 4096);	/* handshakes going on, by process */

enum { TLS_OK, TLS_FAILED, TLS_ABANDONED, TLS_GOING_ON };
enum { TLS_NO_CAUSE, TLS_FATAL, TLS_CLOSED };
/* ssl/statem/statem.h, openssl/ssl.h and openssl/bio.h, the same in OpenSSL 1.1.1 to 3.5 */
enum { TLS_FLOW_UNINITED, TLS_FLOW_ERROR };
enum { TLS_WANT_NOTHING = 1, TLS_WANT_WRITE, TLS_WANT_READ };
#define TLS_BIO_SHOULD_RETRY 0x8
#define TLS_BIO_IN_EOF 0x800
#define TLS_BIO_SOCKET 0x505
#define TLS_BIO_CONNECT 0x50c

static __always_inline void tls_count(u32 pid, u64 by)
{
	u64 none = 0, *n = tls_busy.lookup(&pid);
	if (!n) {
		tls_busy.update(&pid, &none);
		n = tls_busy.lookup(&pid);
	}
	if (n)
		__sync_fetch_and_add(n, by);
}

static __always_inline u32 tls_layout_of(u64 ip)
{
	struct tls_code at = { .page_offset = ip & 4095 };
	u64 page = ip - at.page_offset;
	bpf_probe_read_user(at.code, sizeof(at.code), (void *)(at.page_offset < 128 ? page + 4096 - sizeof(at.code) : page));
	u32 *id = tls_sites.lookup(&at);
	return id ? *id : UNKNOWN32;
}

static __always_inline u32 tls_read(u64 base, s32 offset)
{
	u32 v = UNKNOWN32;
	if (offset >= 0)
		bpf_probe_read_user(&v, sizeof(v), (void *)(base + offset));
	return v;
}

static __always_inline void tls_report(struct tls_key *key, struct tls_open *o, u64 now, u8 result, u8 cause)
{
	struct tls_event *e = tls_events.ringbuf_reserve(sizeof(*e));
	if (!e) {
		lose(LOST_tls_events);
		return;
	}
	__builtin_memset(e, 0, sizeof(*e));
	e->t_ns = now;
	fill_proc(&e->proc, (void *)bpf_get_current_task());
	e->proc.tid = o->tid;
	e->sock = o->sock;
	e->duration_ns = now - o->start_ns;
	e->in_call_ns = o->in_call_ns;
	e->calls = o->calls;
	e->result = result;
	e->cause = cause;
	struct tls_layout *l = tls_layouts.lookup(&o->layout);
	if (l) {
		__builtin_memcpy(e->library, l->library, sizeof(e->library));
		__builtin_memcpy(e->library_version, l->library_version, sizeof(e->library_version));
		u32 v = tls_read(key->ssl, l->version);
		if (result == TLS_OK && v != UNKNOWN32)
			e->protocol = v;
		v = tls_read(key->ssl, l->verify_result);
		if (result == TLS_FAILED && v != UNKNOWN32)
			e->verify_result = v;
	}
	tls_events.ringbuf_submit(e, QUIET);
}

static __always_inline void tls_forget(struct tls_key *key)
{
	tls_opened.delete(key);
	tls_count(key->pid, -1);
}

static __always_inline int tls_begin(struct pt_regs *ctx, u8 role)
{
	on_own_stack(ctx);
	u64 id = bpf_get_current_pid_tgid(), now = bpf_ktime_get_boot_ns();
	u32 tid = id;
	struct tls_key key = { .ssl = PT_REGS_PARM1(ctx), .pid = id >> 32 };
	struct control *c = get_control();
	if (!c || key.pid == c->agent_pid)
		return 0;
	struct tls_inside *within = tls_insides.lookup(&tid);
	if (within) {
		within->nested++;
		return 0;
	}
	struct tls_open *o = tls_opened.lookup(&key);
	u32 layout = o ? o->layout : tls_layout_of(PT_REGS_IP(ctx));
	struct tls_layout *l = tls_layouts.lookup(&layout);
	u32 flow = l ? tls_read(key.ssl, l->flow) : UNKNOWN32;
	if (flow == TLS_FLOW_UNINITED && o && o->calls) {	/* cleared and used again */
		tls_report(&key, o, now, TLS_ABANDONED, TLS_NO_CAUSE);
		tls_forget(&key);
		o = 0;
	}
	if (!o) {	/* neither messages after the handshake, nor one whose start was not seen */
		if (flow == UNKNOWN32 ? !!tls_done.lookup(&key) : flow != TLS_FLOW_UNINITED)
			return 0;
		struct tls_open fresh = { .start_ns = now, .layout = layout };
		__builtin_memset(&fresh.sock, 0xff, sizeof(fresh.sock));
		__builtin_memset(fresh.sock.saddr, 0, sizeof(fresh.sock.saddr));
		__builtin_memset(fresh.sock.daddr, 0, sizeof(fresh.sock.daddr));
		fresh.sock.role = role;
		if (tls_opened.update(&key, &fresh)) {
			lose(LOST_tls_events);
			return 0;
		}
		tls_count(key.pid, 1);
	}
	struct tls_inside in = { .ssl = key.ssl, .enter_ns = now };
	if (tls_insides.update(&tid, &in)) {
		tls_forget(&key);
		lose(LOST_tls_events);
		return 0;
	}
#ifdef TCP_LAST_SOCK
	tcp_last_sock.delete(&tid);
#endif
	__sync_fetch_and_add(&c->tls_depth, 1);
	return 0;
}

int tls_client(struct pt_regs *ctx)
{
	return tls_begin(ctx, 0);
}

int tls_server(struct pt_regs *ctx)
{
	return tls_begin(ctx, 1);
}

int tls_either(struct pt_regs *ctx)
{
	return tls_begin(ctx, UNKNOWN8);
}

/* Of the read BIO (next 0) or the write BIO (next 8); as if to be retried where they cannot be read. */
static __always_inline u32 tls_bio_flags(u64 ssl, struct tls_layout *l, u32 next)
{
	u64 bio = 0;
	u32 flags = UNKNOWN32;
	if (l->rbio >= 0 && l->bio_flags >= 0 && !bpf_probe_read_user(&bio, sizeof(bio), (void *)(ssl + l->rbio + next)))
		flags = tls_read(bio, l->bio_flags);
	return flags == UNKNOWN32 ? TLS_BIO_SHOULD_RETRY : flags;
}

#ifdef TCP_LAST_SOCK
static __always_inline void tls_uses(struct tls_open *o, struct sock_ref *sock)
{
	u8 role = o->sock.role;
	__builtin_memcpy(&o->sock, sock, sizeof(o->sock));
	o->sock.role = role;
}

/* The sock behind the read BIO where that is one of OpenSSL's own for sockets. */
static __always_inline void *tls_bio_sock(u64 ssl, struct tls_layout *l)
{
	u64 bio = 0, method = 0;
	if (l->rbio < 0 || l->bio_flags < 40)
		return 0;
	bpf_probe_read_user(&bio, sizeof(bio), (void *)(ssl + l->rbio));
	/* struct bio_st: method, three callback fields, init, shutdown, flags, retry_reason, num */
	bpf_probe_read_user(&method, sizeof(method), (void *)(bio + l->bio_flags - 40));
	u32 type = tls_read(method, 0);
	if (type != TLS_BIO_SOCKET && type != TLS_BIO_CONNECT)
		return 0;
	void *file = file_of((void *)bpf_get_current_task(), tls_read(bio, l->bio_flags + 8));
	return file && (mode_of(file) & 0170000) == 0140000 ? sock_of(file) : 0;
}

/* The socket that the call received on; else, since a peer may answer nothing, that of the BIO. */
static __always_inline void tls_socket(struct tls_open *o, u64 ssl, struct tls_layout *l, u32 tid)
{
	struct sock_ref *known = tcp_last_sock.lookup(&tid);
	if (known) {
		tls_uses(o, known);
		return;
	}
	u64 sk = l && o->sock.sock_id == UNKNOWN64 ? (u64)tls_bio_sock(ssl, l) : 0;
	if (!sk)
		return;
	struct tcp_socket *s = tcp_sockets.lookup(&sk);
	if (!s)
		s = tcp_adopt((void *)sk, bpf_ktime_get_boot_ns());
	if (s)
		tls_uses(o, &s->sock);
}
#endif

static __always_inline u8 tls_verdict(u64 ssl, struct tls_layout *l, s32 ret, u8 *cause)
{
	*cause = TLS_NO_CAUSE;
	if (ret > 0)
		return TLS_OK;
	*cause = TLS_FATAL;
	if (!l || l->flow < 0)
		return ret == 0 ? TLS_FAILED : TLS_GOING_ON;
	u32 want = tls_read(ssl, l->rwstate);
	if (tls_read(ssl, l->flow) == TLS_FLOW_ERROR || want == TLS_WANT_NOTHING) {
		if (tls_bio_flags(ssl, l, 0) & TLS_BIO_IN_EOF)
			*cause = TLS_CLOSED;
		return TLS_FAILED;
	}
	/* Not retried: the transport failed. */
	*cause = TLS_CLOSED;
	if (want == TLS_WANT_READ)
		return tls_bio_flags(ssl, l, 0) & TLS_BIO_SHOULD_RETRY ? TLS_GOING_ON : TLS_FAILED;
	if (want == TLS_WANT_WRITE)
		return tls_bio_flags(ssl, l, 8) & TLS_BIO_SHOULD_RETRY ? TLS_GOING_ON : TLS_FAILED;
	return TLS_GOING_ON;
}

int tls_return(struct pt_regs *ctx)
{
	on_own_stack(ctx);
	u64 id = bpf_get_current_pid_tgid(), now = bpf_ktime_get_boot_ns();
	u32 tid = id;
	struct control *c = get_control();
	struct tls_inside *within = tls_insides.lookup(&tid);
	if (!c || !within)
		return 0;
	if (within->nested) {
		within->nested--;
		return 0;
	}
	struct tls_key key = { .ssl = within->ssl, .pid = id >> 32 };
	u64 spent = now - within->enter_ns;
	tls_insides.delete(&tid);
	__sync_fetch_and_add(&c->tls_depth, -1);
	struct tls_open *o = tls_opened.lookup(&key);
	if (!o)
		return 0;
	o->in_call_ns += spent;
	o->calls++;
	o->tid = tid;
	u8 cause;
	struct tls_layout *l = tls_layouts.lookup(&o->layout);
#ifdef TCP_LAST_SOCK
	tls_socket(o, key.ssl, l, tid);
#endif
	u8 result = tls_verdict(key.ssl, l, PT_REGS_RC(ctx), &cause);
	if (result == TLS_GOING_ON)
		return 0;
	tls_report(&key, o, now, result, cause);
	if (!l || l->flow < 0) {
		u8 yes = 1;
		tls_done.update(&key, &yes);
	}
	tls_forget(&key);
	return 0;
}

int tls_free(struct pt_regs *ctx)
{
	on_own_stack(ctx);
	struct tls_key key = { .ssl = PT_REGS_PARM1(ctx), .pid = bpf_get_current_pid_tgid() >> 32 };
	struct tls_open *o = tls_opened.lookup(&key);
	if (o) {
		tls_report(&key, o, bpf_ktime_get_boot_ns(), TLS_ABANDONED, TLS_NO_CAUSE);
		tls_forget(&key);
	}
	tls_done.delete(&key);
	return 0;
}

/* A process that ends inside handshakes: the agent reports them. */
int tls_exit(struct bpf_raw_tracepoint_args *ctx)
{
	u64 id = bpf_get_current_pid_tgid();
	u32 tid = id, pid = id >> 32;
	struct control *c = get_control();
	if (c && c->tls_depth && tls_insides.lookup(&tid)) {
		tls_insides.delete(&tid);
		__sync_fetch_and_add(&c->tls_depth, -1);
	}
	u32 live = 0;
	void *task = (void *)ctx->args[0];
	GET(live, PTR(task, task_struct, signal), signal_struct, live);
	u64 *busy = live ? 0 : tls_busy.lookup(&pid);
	if (!busy)
		return 0;
	u64 n = *busy;
	tls_busy.delete(&pid);
	if (!n)
		return 0;
	struct tls_exit_event *e = tls_exits.ringbuf_reserve(sizeof(*e));
	if (!e) {
		lose(LOST_tls_exits);
		return 0;
	}
	e->t_ns = bpf_ktime_get_boot_ns();
	fill_proc(&e->proc, task);
	tls_exits.ringbuf_submit(e, QUIET);
	return 0;
}
