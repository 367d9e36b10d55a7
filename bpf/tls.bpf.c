/* TLS handshakes of OpenSSL: one record each, for any number of calls. Uprobes on functions that run in every handshake
 * and never on established data (agent/binaries/openssl.py finds them); kernel 5.8 (ring buffer). Driven by
 * agent/probes/tls.py. */

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
	u32 verify_result;	/* X509_V_ERR_*, 0 ok */
	u32 pad;
	char library[16];
	char library_version[32];
};

struct tls_exit_event {
	u64 t_ns;
	struct proc proc;
};

struct tls_inside {	/* a thread inside a call */
	u64 ssl;
	u64 enter_ns;
	u64 read;		/* bytes read from the BIO before */
	u32 nested;
	u32 uid;		/* the user whose share it uses */
};

struct tls_process {
	u64 open;		/* handshakes under way */
	u32 uid;
	u32 pad;
};

#define TLS_PAGES 256	/* room for all shares */
/* A user's shares: handshakes that end, and places: handshakes under way, threads in them, processes. */
#define TLS_EACH_NS 200000
#define TLS_MOST 1024
#define TLS_PLACES_EACH_NS 60000000000ull
#define TLS_OPEN_MOST 3584
#define TLS_THREADS_MOST 2048
#define TLS_DONE_EACH_NS 10000000000ull
BPF_RINGBUF_OUTPUT(tls_events, TLS_PAGES);
BPF_RINGBUF_OUTPUT(tls_exits, 4);
BPF_TABLE("lru_hash", struct tls_key, u8, tls_done, 16384);	/* only if the message flow state cannot be read */
BPF_TABLE("hash", u32, struct tls_inside, tls_insides, 8192);
BPF_TABLE("hash", u32, struct tls_process, tls_busy, 8192);

static __always_inline void tls_count(u32 pid, u64 by)
{
	struct tls_process *p = tls_busy.lookup(&pid);
	if (p)
		__sync_fetch_and_add(&p->open, by);
}

/* Takes the places of another handshake of this process; false if its user has used them up. */
static __always_inline bool tls_room(u32 pid, u32 uid)
{
	struct tls_process one = {.uid = uid};
	bool known = tls_busy.lookup(&pid) != 0;
	if (!known && no_place(uid, SHARE_TLS_PROCESSES, TLS_PLACES_EACH_NS, TLS_THREADS_MOST))
		return false;
	if (!known && tls_busy.update(&pid, &one)) {
		give_share_back(uid, SHARE_TLS_PROCESSES, TLS_PLACES_EACH_NS);
		return false;
	}
	return !no_place(uid, SHARE_HANDSHAKES_OPEN, TLS_PLACES_EACH_NS, TLS_OPEN_MOST);
}

static __always_inline void tls_report(struct tls_key *key, struct tls_open *o, u64 now, u8 result, u8 cause)
{
	struct tls_event *e;
	if (over_share(tls_charged_uid(o), SHARE_HANDSHAKES, TLS_EACH_NS, TLS_MOST)) {
		lose(LOST_tls_shares);
		return;
	}
	e = tls_events.ringbuf_reserve(sizeof(*e));
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
	e->verify_result = UNKNOWN32;
	struct tls_layout *l = tls_layouts.lookup(&o->layout);
	if (l) {
		__builtin_memcpy(e->library, l->library, sizeof(e->library));
		__builtin_memcpy(e->library_version, l->library_version, sizeof(e->library_version));
		u32 v = tls_read(key->ssl, l->version);
		if (result == TLS_OK && v != UNKNOWN32)
			e->protocol = v;
		if (result != TLS_ABANDONED)
			e->verify_result = tls_verified(key->ssl, l);
	}
	tls_events.ringbuf_submit(e, wake_each(LOST_tls_events, RING_QUARTER(TLS_PAGES, *e)));
}

static __always_inline void tls_forget(struct tls_key *key, struct tls_open *o)
{
	u32 uid = o->uid;
	tls_over(o);
	if (!tls_opened.delete(key))
		give_share_back(uid, SHARE_HANDSHAKES_OPEN, TLS_PLACES_EACH_NS);
	tls_count(key->pid, -1);
}

static __always_inline int tls_begin(struct pt_regs *ctx, u8 role)
{
	on_own_stack(ctx);
	u64 id = bpf_get_current_pid_tgid(), now = bpf_ktime_get_boot_ns();
	u32 tid = id, uid;
	struct tls_key key = { .ssl = reg_arg1(ctx), .pid = id >> 32 };
	struct control *c = get_control();
	if (!c || key.pid == c->agent_pid)
		return 0;
	struct tls_inside *within = tls_insides.lookup(&tid);
	if (within) {
		within->nested++;
		return 0;
	}
	struct tls_open *o = tls_opened.lookup(&key);
	uid = uid_of((void *)bpf_get_current_task());
	u32 layout = o ? o->layout : tls_layout_of(reg_ip(ctx));
	struct tls_layout *l = tls_layouts.lookup(&layout);
	u32 flow = l ? tls_read(key.ssl, l->flow) : UNKNOWN32;
	if (flow == TLS_FLOW_UNINITED && o && o->calls) {	/* cleared and used again */
		tls_report(&key, o, now, TLS_ABANDONED, TLS_NO_CAUSE);
		tls_forget(&key, o);
		o = 0;
	}
	if (!o) {	/* messages after the handshake, or one whose start was not seen */
		if (flow == UNKNOWN32 ? !!tls_done.lookup(&key) : flow != TLS_FLOW_UNINITED)
			return 0;
		if (!tls_room(key.pid, uid)) {
			lose(LOST_tls_shares);
			return 0;
		}
		struct tls_open fresh = { .start_ns = now, .layout = layout, .uid = uid };
		fresh.sock.role = role;
		tls_no_socket(&fresh);
		if (tls_opened.update(&key, &fresh)) {
			give_share_back(uid, SHARE_HANDSHAKES_OPEN, TLS_PLACES_EACH_NS);
			lose(LOST_tls_events);
			return 0;
		}
		tls_count(key.pid, 1);
	}
	struct tls_inside in = { .ssl = key.ssl, .enter_ns = now, .read = l ? tls_bio_count(tls_bio(key.ssl, l, 0), l) : 0, .uid = uid };
	bool over = no_place(uid, SHARE_TLS_THREADS, TLS_PLACES_EACH_NS, TLS_THREADS_MOST);
	if (over || tls_insides.update(&tid, &in)) {
		lose(over ? LOST_tls_shares : LOST_tls_events);
		o = tls_opened.lookup(&key);
		if (o)
			tls_forget(&key, o);
		return 0;
	}
	__sync_fetch_and_add(&c->tls_depth, 1);
	tls_enters(tid);
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
	u64 spent = now - within->enter_ns, read = within->read;
	give_share_back(within->uid, SHARE_TLS_THREADS, TLS_PLACES_EACH_NS);
	tls_insides.delete(&tid);
	__sync_fetch_and_add(&c->tls_depth, -1);
	struct tls_open *o = tls_opened.lookup(&key);
	if (!o) {
		tls_leaves_none(tid);
		return 0;
	}
	o->in_call_ns += spent;
	o->calls++;
	o->tid = tid;
	u8 cause;
	struct tls_layout *l = tls_layouts.lookup(&o->layout);
	u8 result = tls_verdict(key.ssl, l, reg_return(ctx), &cause);
	o->verdict = result | cause << 8;
	u32 verdict = *(volatile u32 *)&o->verdict;	/* volatile: one path for the verifier, not one per verdict */
	result = verdict;
	cause = verdict >> 8;
	tls_leaves(&key, o, l, tid, read, result == TLS_GOING_ON);
	if (result == TLS_GOING_ON)
		return 0;
	tls_report(&key, o, now, result, cause);
	if (!l || l->flow < 0) {
		u8 yes = 1;
		if (!no_place(o->uid, SHARE_HANDSHAKES_DONE, TLS_DONE_EACH_NS, TLS_OPEN_MOST))
			tls_done.update(&key, &yes);
	}
	tls_forget(&key, o);
	return 0;
}

int tls_free(struct pt_regs *ctx)
{
	on_own_stack(ctx);
	struct tls_key key = { .ssl = reg_arg1(ctx), .pid = bpf_get_current_pid_tgid() >> 32 };
	struct tls_open *o = tls_opened.lookup(&key);
	if (o) {
		struct tls_layout *l = tls_layouts.lookup(&o->layout);
		/* outside of the handshake's own calls: in early data */
		bool failed = l && tls_read(key.ssl, l->flow) == TLS_FLOW_ERROR;
		bool closed = !failed && tls_peer_closed(o);
		tls_report(&key, o, bpf_ktime_get_boot_ns(), failed || closed ? TLS_FAILED : TLS_ABANDONED,
			   failed ? TLS_FATAL : closed ? TLS_CLOSED : TLS_NO_CAUSE);
		tls_forget(&key, o);
	}
	if (!tls_done.delete(&key))
		give_share_back(uid_of((void *)bpf_get_current_task()), SHARE_HANDSHAKES_DONE, TLS_DONE_EACH_NS);
	return 0;
}

/* A process that ends inside handshakes: the agent reports them. */
int tls_exit(struct bpf_raw_tracepoint_args *ctx)
{
	u64 id = bpf_get_current_pid_tgid();
	u32 tid = id, pid = id >> 32;
	struct control *c = get_control();
	struct tls_inside *within = c && c->tls_depth ? tls_insides.lookup(&tid) : 0;
	if (within) {
		give_share_back(within->uid, SHARE_TLS_THREADS, TLS_PLACES_EACH_NS);
		tls_insides.delete(&tid);
		__sync_fetch_and_add(&c->tls_depth, -1);
	}
	tls_thread_exits(c, tid);
	u32 live = 0;
	void *task = (void *)ctx->args[0];
	GET(live, PTR(task, task_struct, signal), signal_struct, live);
	struct tls_process *busy = live ? 0 : tls_busy.lookup(&pid);
	if (!busy)
		return 0;
	u64 n = busy->open;
	u32 uid = busy->uid;
	tls_busy.delete(&pid);
	give_share_back(uid, SHARE_TLS_PROCESSES, TLS_PLACES_EACH_NS);
	if (!n)
		return 0;
	give_share_back(uid, SHARE_HANDSHAKES_OPEN, (n & 0xffff) * TLS_PLACES_EACH_NS);	/* the agent removes them */
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
