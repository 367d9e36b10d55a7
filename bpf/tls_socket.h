/* The socket of a TLS handshake. Part of the tls family, after tls_ssl.h; unknown without the tcp family.
 *
 * Within a call of the handshake: the socket that the thread used last, else that of OpenSSL's own socket BIO. With a
 * memory BIO, the program reads a socket and then passes the data on. So for a thread with such handshakes, its reads
 * are kept (tcp_thread) until a call is known to have got them: each socket's read position in its stream is compared
 * with the SSL's read position in its BIO. The one socket that fits is the handshake's, as long as every reading call
 * agrees. If two fit, or calls disagree, the socket is unknown. */

struct tls_open {	/* a handshake under way */
	u64 start_ns;
	u64 in_call_ns;
	struct sock_ref sock;
	u32 calls;
	u32 layout;		/* element of tls_layouts, UNKNOWN32 for none */
	u32 tid;		/* of the last call */
	u32 watched;		/* thread with kept reads between calls, 0 for none */
	u64 sk;			/* the socket that fits, 0 for none yet; UNKNOWN64: calls disagree */
	u64 used;		/* the socket that a call used itself, 0 for none */
	u32 base;		/* the handshake's beginning in its stream */
	u32 verdict;		/* of the last call */
	u32 uid;		/* the user whose share it uses */
	u32 pad;
};

struct tls_key {
	u64 ssl;
	u32 pid;
	u32 pad;
};

BPF_TABLE("lru_hash", struct tls_key, struct tls_open, tls_opened, 16384);

static __always_inline void tls_no_socket(struct tls_open *o)
{
	u8 role = o->sock.role;
	__builtin_memset(&o->sock, 0xff, sizeof(o->sock));
	__builtin_memset(o->sock.saddr, 0, sizeof(o->sock.saddr));
	__builtin_memset(o->sock.daddr, 0, sizeof(o->sock.daddr));
	o->sock.role = role;
}

#ifdef TCP_THREADS
static __always_inline void tls_uses(struct tls_open *o, struct tcp_socket *s)
{
	u8 role = o->sock.role;
	__builtin_memcpy(&o->sock, &s->sock, sizeof(o->sock));
	o->sock.role = role;
}

/* One handshake less waits for this thread's reads. */
static __always_inline void tls_unwatch(struct tls_open *o)
{
	u32 tid = o->watched;
	struct tcp_thread *t = tid ? tcp_threads.lookup(&tid) : 0;
	o->watched = 0;
	if (!t || !t->open)
		return;
	t->open--;
	if (!t->open && !t->inside)
		tcp_thread_end(tid);
}

static __always_inline void tls_watch(struct tls_open *o, struct tcp_thread *t, u32 tid)
{
	if (o->watched == tid)
		return;
	tls_unwatch(o);
	o->watched = tid;
	t->open++;
}

/* The sock of the read BIO, if that is one of OpenSSL's own for sockets. */
static __always_inline u64 tls_bio_sock(u64 bio, struct tls_layout *l)
{
	void *file = file_of((void *)bpf_get_current_task(), tls_read(bio, l->bio_flags + TLS_BIO_NUM));
	return file && (mode_of(file) & 0170000) == 0140000 ? (u64)sock_of(file) : 0;
}

static __always_inline void tls_use(struct tls_open *o, u64 sk)
{
	struct tcp_socket *s = tcp_sockets.lookup(&sk);
	if (!s)
		s = tcp_adopt((void *)sk, bpf_ktime_get_boot_ns());
	if (s) {
		o->used = sk;
		tls_uses(o, s);
	}
}

/* Whether the peer has closed or reset the connection while the program still holds the socket: haproxy then does not
 * call OpenSSL again. The memory may be another connection's by now, so the port is compared. */
static __always_inline bool tls_peer_closed(struct tls_open *o)
{
	u64 sk = o->used ? o->used : o->sk;
	u16 port = 0;
	u8 state = 0;
	if (!sk || sk == UNKNOWN64 || !PTR(sk, sock, sk_socket))
		return false;
	READ(state, sk, sock_common, skc_state);
	READ(port, sk, sock_common, skc_dport);
	return (state == TCP_CLOSE || state == TCP_CLOSE_WAIT) && __builtin_bswap16(port) == o->sock.dport;
}

/* Comparison without a branch: with one, the verifier would follow every sequence of outcomes over all reads of a
 * thread. */
static __always_inline u32 tls_negative(u32 v)
{
	asm volatile("" : "+r"(v));
	return v >> 31;
}

static __always_inline u32 tls_zero(u32 v)
{
	return tls_negative(~(v | -v));
}

struct tls_fit {
	u64 sk;			/* of one; of several their sum */
	u32 count;
	u32 base;
};

static __always_inline void tls_add(struct tls_fit *fit, u32 one, u64 sk, u32 base)
{
	fit->sk += sk & -(u64)one;
	fit->base += base & -one;
	fit->count += one;
}

static __always_inline void tls_claim(struct tls_key *key, struct tls_open *o, u64 sk, u32 base)
{
	struct tcp_socket *s = tcp_sockets.lookup(&sk);
	if (!s)
		return;
	if (s->ssl && s->ssl != key->ssl) {	/* of two that claim a socket, at least one is wrong */
		struct tls_key other = { .ssl = s->ssl, .pid = key->pid };
		struct tls_open *theirs = tls_opened.lookup(&other);
		if (theirs) {
			theirs->sk = UNKNOWN64;
			tls_no_socket(theirs);
		}
		o->sk = UNKNOWN64;
		return;
	}
	s->ssl = key->ssl;
	o->sk = sk;
	o->base = base;
	tls_uses(o, s);
}

/* The data read from this handshake's socket is in its BIO now. */
static __always_inline void tls_explained(struct tls_open *o, struct tcp_thread *t)
{
	u64 sk = o->sk;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < TCP_RECEIVED; i++) {
		u64 other = t->received[i].sk ^ sk;
		t->received[i].sk &= (u64)tls_zero((u32)other | (u32)(other >> 32)) - 1;
	}
}

/* Compares the thread's reads before this call, which read [from, to) of its BIO. drained: it wanted more. */
static __always_inline void tls_bracket(struct tls_key *key, struct tls_open *o, struct tcp_thread *t, u32 from, u32 to, bool drained)
{
	/* Read up to the BIO's position; further, followed by the program's own data; or as much, after something else, as
	 * with STARTTLS. */
	struct tls_fit whole = {}, within = {}, later = {}, *best;
	u32 same = 0, first = !o->sk, base = o->base, doubt = t->doubt;
	u64 sk = o->sk;
	if (doubt)
		t->doubt = doubt - 1;
	if (sk == UNKNOWN64 || tls_negative(to - from - 1))
		return;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < TCP_RECEIVED; i++) {
		struct tcp_received *r = &t->received[i];
		u32 more = r->to - to - base, valid = !tls_zero((u32)r->sk | (u32)(r->sk >> 32));
		u64 other = r->sk ^ sk;
		u32 fits = tls_zero(more);
		u32 reaches = !drained & tls_negative(~more) & tls_negative(~(from + base - r->from)) & ~fits;
		u32 behind = first & tls_zero(r->to - r->from - to + from) & tls_negative(from - r->from);
		tls_add(&whole, valid & fits, r->sk, 0);
		tls_add(&within, valid & reaches, r->sk, 0);
		tls_add(&later, valid & behind, r->sk, r->from - from);
		same |= valid & (fits | reaches) & tls_zero((u32)other | (u32)(other >> 32));
	}
	best = whole.count ? &whole : within.count ? &within : &later;
	if (first) {
		if (best->count == 1 && !doubt)
			tls_claim(key, o, best->sk, best->base);
	} else if (best->count && !same) {
		o->sk = UNKNOWN64;
		tls_no_socket(o);
	}
	if (o->sk && o->sk != UNKNOWN64)
		tls_explained(o, t);
}

/* A call begins: sockets that this thread uses belong to the handshake. */
static __always_inline void tls_enters(u32 tid)
{
	struct tcp_thread *t = tcp_thread_of(tid);
	if (!t)
		return;
	t->inside = 1;
	t->used = 0;
}

/* A call ends that read the BIO from `from` on. going: the handshake continues. */
static __always_inline void tls_leaves(struct tls_key *key, struct tls_open *o, struct tls_layout *l, u32 tid, u64 from, bool going)
{
	struct tcp_thread *t = tcp_threads.lookup(&tid);
	u64 bio = l ? tls_bio(key->ssl, l, 0) : 0;
	bool is_socket = bio && tls_bio_is_socket(bio, l);
	if (!t)
		return;
	t->inside = 0;
	if (t->used) {
		tls_use(o, t->used);
	} else if (is_socket) {
		u64 sk = o->sock.sock_id == UNKNOWN64 ? tls_bio_sock(bio, l) : 0;
		if (sk)
			tls_use(o, sk);
	} else if (bio) {
		tls_bracket(key, o, t, from, tls_bio_count(bio, l), going && tls_read(key->ssl, l->rwstate) == TLS_WANT_READ);
		if (going)
			tls_watch(o, t, tid);
	}
	t->calls++;
	if (!t->open)
		tcp_thread_end(tid);
}

/* The handshake is gone: cleared by another thread meanwhile. */
static __always_inline void tls_leaves_none(u32 tid)
{
	struct tcp_thread *t = tcp_threads.lookup(&tid);
	if (!t)
		return;
	t->inside = 0;
	t->calls++;
	if (!t->open)
		tcp_thread_end(tid);
}

static __always_inline void tls_thread_exits(struct control *c, u32 tid)
{
	if (c && c->tcp_threads)
		tcp_thread_end(tid);
}

/* The user whose share the handshake's record uses: the client's, if both ends are on this host. */
static __always_inline u32 tls_charged_uid(struct tls_open *o)
{
	u64 sk = o->used ? o->used : o->sk;
	struct tcp_socket *s = sk && sk != UNKNOWN64 ? tcp_sockets.lookup(&sk) : 0;
	return s && s->sock.role == TCP_ROLE_SERVER ? s->charged_uid : o->uid;
}

static __always_inline void tls_over(struct tls_open *o)
{
	u64 sk = o->sk;
	struct tcp_socket *s = sk && sk != UNKNOWN64 ? tcp_sockets.lookup(&sk) : 0;
	if (s)
		s->ssl = UNKNOWN64;	/* it carries data from now on */
	tls_unwatch(o);
}
#else
static __always_inline void tls_enters(u32 tid) {}
static __always_inline void tls_leaves_none(u32 tid) {}
static __always_inline void tls_thread_exits(struct control *c, u32 tid) {}
static __always_inline void tls_leaves(struct tls_key *key, struct tls_open *o, struct tls_layout *l, u32 tid, u64 from, bool going) {}
static __always_inline void tls_over(struct tls_open *o) {}
static __always_inline u32 tls_charged_uid(struct tls_open *o) { return o->uid; }
static __always_inline bool tls_peer_closed(struct tls_open *o) { return false; }
#endif
