/* Fields of OpenSSL's own structs that the programs of bpf/tls.bpf.c read. First in its family.
 *
 * Offsets differ between OpenSSL versions, and several may run on one host. A call's version is identified by the code
 * itself: the function's position in its page, and 60 bytes of that page (tls_code). The agent fills tls_sites and
 * tls_layouts before it attaches, so new processes are identified at once. */

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
	s32 session;
	s32 peer;		/* into a session: the peer's certificate */
	char library[16];
	char library_version[32];
};

BPF_TABLE("hash", struct tls_code, u32, tls_sites, 1024);
BPF_TABLE("array", u32, struct tls_layout, tls_layouts, 256);

enum { TLS_OK, TLS_FAILED, TLS_ABANDONED, TLS_GOING_ON };
enum { TLS_NO_CAUSE, TLS_FATAL, TLS_CLOSED };
/* ssl/statem/statem.h, openssl/ssl.h and openssl/bio.h, the same in OpenSSL 1.1.1 to 3.5 */
enum { TLS_FLOW_UNINITED, TLS_FLOW_ERROR };
enum { TLS_WANT_NOTHING = 1, TLS_WANT_WRITE, TLS_WANT_READ };
#define TLS_HAND_STATE 20	/* from the flow state to that of the handshake, */
#define TLS_HAND_STATE_OK 1	/* whose value is this once it is over */
#define TLS_BIO_SHOULD_RETRY 0x8
#define TLS_BIO_IN_EOF 0x800
#define TLS_BIO_SOCKET 0x505
#define TLS_BIO_CONNECT 0x50c
/* struct bio_st: method, three callback fields, init, shutdown, flags, retry_reason, num, ptr, two links, references, num_read */
#define TLS_BIO_METHOD (-40)
#define TLS_BIO_NUM 8
#define TLS_BIO_NUM_READ 48

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

static __always_inline u64 tls_pointer(u64 base, s32 offset)
{
	u64 v = 0;
	if (base && offset >= 0)
		bpf_probe_read_user(&v, sizeof(v), (void *)(base + offset));
	return v;
}

/* Result of the check of the peer's certificate, X509_V_ERR_*. Unknown without a certificate, when the field is 0, too.
 */
static __always_inline u32 tls_verified(u64 ssl, struct tls_layout *l)
{
	u32 v = tls_read(ssl, l->verify_result);
	return v || tls_pointer(tls_pointer(ssl, l->session), l->peer) ? v : UNKNOWN32;
}

/* The read BIO (next 0) or the write BIO (next 8), 0 if unreadable. */
static __always_inline u64 tls_bio(u64 ssl, struct tls_layout *l, u32 next)
{
	return l->rbio >= 0 && l->bio_flags >= 40 ? tls_pointer(ssl, l->rbio + next) : 0;
}

/* Retry is assumed if they cannot be read. */
static __always_inline u32 tls_bio_flags(u64 ssl, struct tls_layout *l, u32 next)
{
	u64 bio = tls_bio(ssl, l, next);
	u32 flags = bio ? tls_read(bio, l->bio_flags) : UNKNOWN32;
	return flags == UNKNOWN32 ? TLS_BIO_SHOULD_RETRY : flags;
}

/* Whether this is one of OpenSSL's own BIOs for sockets. */
static __always_inline bool tls_bio_is_socket(u64 bio, struct tls_layout *l)
{
	u32 type = bio ? tls_read(tls_pointer(bio, l->bio_flags + TLS_BIO_METHOD), 0) : UNKNOWN32;
	return type == TLS_BIO_SOCKET || type == TLS_BIO_CONNECT;
}

/* Bytes read from a BIO so far. */
static __always_inline u64 tls_bio_count(u64 bio, struct tls_layout *l)
{
	return bio ? tls_pointer(bio, l->bio_flags + TLS_BIO_NUM_READ) : 0;
}

/* 1 is also returned before early data, with the peer's half of the handshake outstanding. */
static __always_inline u8 tls_verdict(u64 ssl, struct tls_layout *l, s32 ret, u8 *cause)
{
	bool known = l && l->flow >= 0;
	*cause = TLS_NO_CAUSE;
	if (ret > 0)
		return known && tls_read(ssl, l->flow + TLS_HAND_STATE) != TLS_HAND_STATE_OK ? TLS_GOING_ON : TLS_OK;
	*cause = TLS_FATAL;
	if (!known)
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
