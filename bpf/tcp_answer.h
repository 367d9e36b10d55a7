/* Servers' answers: whether an answer begins with an error of a common protocol. Part of the tcp family, after
 * tcp_service.h.
 *
 * No hook of its own: a client is sampled while it reads, from the buffer that it passed to its call. Sampled are the
 * first read of a socket in each gate (see tcp_rtt.h) and, of the others, the first few of a tick on each CPU. So a
 * busy client is sampled, and a client with several servers has samples of each. The first read may be the middle of an
 * answer: it then matches no protocol, and is not counted.
 *
 * A program can place anything there, so its user is kept (uid): agent/correlate/answered.py never trusts a single
 * user. */

#define TCP_HEAD 48
#define TCP_CODE 12
#define TCP_SAMPLES 4	/* samples of a tick, on each CPU */
#define TCP_ANSWERS 2048	/* room for a second's data of both kinds of users */
#define TCP_ANSWERS_EACH_NS 4000000
#define TCP_ANSWERS_MOST 256

enum {
	TCP_PROTOCOL_UNKNOWN,
	TCP_PROTOCOL_HTTP,
	TCP_PROTOCOL_REDIS,
	TCP_PROTOCOL_POSTGRESQL,
	TCP_PROTOCOL_MYSQL,
	TCP_PROTOCOL_MEMCACHED,
	TCP_PROTOCOL_AMQP,
};

struct tcp_answer_key {
	u32 pid;
	u32 netns;
	u8 daddr[16];
	u16 dport;
	u8 protocol;
	u8 pad;
	char code[12];		/* TCP_CODE; empty: no error */
	u32 uid;
};

struct tcp_answer_value {
	u64 count;
	struct proc proc;
	struct sock_ref sock;
	u32 uid;
	u32 pad;
};

struct tcp_tick_samples {
	u32 tick;
	u32 n;
};

BPF_TABLE("hash", struct tcp_answer_key, struct tcp_answer_value, tcp_answers_a, TCP_ANSWERS);
BPF_TABLE("hash", struct tcp_answer_key, struct tcp_answer_value, tcp_answers_b, TCP_ANSWERS);
BPF_TABLE("percpu_array", u32, struct tcp_answer_value, tcp_answer_new, 1);
BPF_ARRAY(tcp_sampled, struct tcp_tick_samples, 64);

/* Whether this tick has room for another sample. Sockets that share a slot only cost each other a sample. */
static __always_inline bool tcp_may_sample(void)
{
	u32 place = bpf_get_smp_processor_id() & 63, tick = bpf_jiffies64();
	struct tcp_tick_samples *l = tcp_sampled.lookup(&place);
	if (!l)
		return false;
	if (l->tick != tick) {
		l->tick = tick;
		l->n = 0;
	}
	return l->n++ < TCP_SAMPLES;
}

static __always_inline bool tcp_capital(u8 c)
{
	return c >= 'A' && c <= 'Z';
}

/* A number of up to four digits. */
static __always_inline void tcp_number(char *to, u32 n)
{
	to[0] = '0' + n / 1000 % 10;
	to[1] = '0' + n / 100 % 10;
	to[2] = '0' + n / 10 % 10;
	to[3] = '0' + n % 10;
}

static __always_inline bool tcp_begins(const u8 *h, char a, char b, char c, char d)
{
	return h[0] == a && h[1] == b && h[2] == c && h[3] == d;
}

/* "ERR unknown subcommand", and "ERR Unknown subcommand" of Redis 6: clients introduce themselves with CLIENT SETINFO
 * at each connection, which older servers do not know. */
static __always_inline bool tcp_unknown_subcommand(const u8 *h)
{
	return tcp_begins(h, '-', 'E', 'R', 'R') && h[4] == ' ' && tcp_begins(h + 6, 'n', 'k', 'n', 'o') && h[13] == 's';
}

/* -WORD, of Redis and of NATS; +text :number $length *length of Redis. */
static __always_inline u8 tcp_redis(const u8 *h, char *code)
{
	bool number = (h[1] >= '0' && h[1] <= '9') || h[1] == '-';
	if (h[0] == '+' && tcp_capital(h[1]))
		return TCP_PROTOCOL_REDIS;
	if ((h[0] == ':' || h[0] == '$' || h[0] == '*') && number)
		return TCP_PROTOCOL_REDIS;
	if (h[0] != '-' || !tcp_capital(h[1]) || !tcp_capital(h[2]))
		return TCP_PROTOCOL_UNKNOWN;
#pragma unroll
	for (int i = 0; i < TCP_CODE - 1; i++) {
		if (!tcp_capital(h[1 + i]))
			break;
		code[i] = h[1 + i];
	}
	if (tcp_unknown_subcommand(h))
		__builtin_memcpy(code, h + 1, 11);
	return TCP_PROTOCOL_REDIS;
}

/* A message's letter and length; of an error the fields S and V, its severity, and C, the SQLSTATE. If the severity is
 * translated, there is no code. Messages that may precede it (a statement was parsed and bound) are skipped. */
static __always_inline u8 tcp_postgresql(const u8 *head, char *code)
{
	u8 h[28];
	u32 at = head[0] == '1' && head[4] == 4 ? 5 : 0;
	bpf_probe_read_kernel(h, 28, head + at);
	if (h[0] == '2' && h[4] == 4)
		bpf_probe_read_kernel(h, 28, head + at + 5);
	if (h[1] || h[2] > 15 || (!h[2] && !h[3] && h[4] < 4))
		return TCP_PROTOCOL_UNKNOWN;
	if (h[0] == 'E') {
		if (h[5] != 'S' || !tcp_capital(h[6]))
			return TCP_PROTOCOL_UNKNOWN;
		if (h[12] == 'V' && h[19] == 'C')
			__builtin_memcpy(code, h + 20, 5);
		else
			__builtin_memcpy(code, "error", 5);
		return TCP_PROTOCOL_POSTGRESQL;
	}
	bool other = h[0] == 'R' || h[0] == 'T' || h[0] == 'D' || h[0] == 'C' || h[0] == 'Z' || h[0] == 'S' || h[0] == 't' || h[0] == 'n' || h[0] == '2' ||
		     head[0] == '1';
	return other ? TCP_PROTOCOL_POSTGRESQL : TCP_PROTOCOL_UNKNOWN;
}

/* Three bytes of length, the packet's number in the exchange, and 0xff with an error's number and # before its
 * SQLSTATE. The first packet of a connection has no SQLSTATE. */
static __always_inline u8 tcp_mysql(const u8 *h, char *code)
{
	u32 errno = h[5] | h[6] << 8;
	if (h[2] || h[1] > 3 || h[3] > 9)
		return TCP_PROTOCOL_UNKNOWN;
	if (h[4] == 0xff && errno >= 1000 && errno < 5000 && (h[7] == '#' || !h[3])) {
		tcp_number(code, errno);
		return TCP_PROTOCOL_MYSQL;
	}
	return h[3] == 1 && ((h[0] >= 7 && !h[4]) || (h[0] == 1 && !h[1] && h[4])) ? TCP_PROTOCOL_MYSQL : TCP_PROTOCOL_UNKNOWN;
}

static __always_inline u8 tcp_memcached(const u8 *h, char *code)
{
	if (tcp_begins(h, 'S', 'E', 'R', 'V') && tcp_begins(h + 4, 'E', 'R', '_', 'E')) {
		__builtin_memcpy(code, "SERVER_ERROR", TCP_CODE);
		return TCP_PROTOCOL_MEMCACHED;
	}
	return tcp_begins(h, 'S', 'T', 'O', 'R') || tcp_begins(h, 'V', 'A', 'L', 'U') || tcp_begins(h, 'E', 'N', 'D', '\r') ? TCP_PROTOCOL_MEMCACHED
															    : TCP_PROTOCOL_UNKNOWN;
}

/* A frame with a method: connection.close and channel.close have a number as the reason, connection.blocked has text.
 * Heartbeats are not counted. */
static __always_inline u8 tcp_amqp(const u8 *h, char *code)
{
	bool connection = h[8] == 10, channel = h[8] == 20;
	if (h[0] != 1 || h[3] || h[7] || h[9] || h[8] < 10 || h[8] > 90 || h[10] < 10)
		return TCP_PROTOCOL_UNKNOWN;
	if ((connection && h[10] == 50) || (channel && h[10] == 40))
		tcp_number(code, h[11] << 8 | h[12]);
	else if (connection && h[10] == 60)
		__builtin_memcpy(code, "blocked", 7);
	return TCP_PROTOCOL_AMQP;
}

/* The protocol of an answer; code: of an error. */
static __always_inline u8 tcp_protocol_of(const u8 *h, char *code)
{
	u8 protocol;
	if (tcp_begins(h, 'H', 'T', 'T', 'P')) {
		if (h[9] == '5' || (h[9] == '4' && h[10] == '2' && h[11] == '9'))
			__builtin_memcpy(code, h + 9, 3);
		return h[4] == '/' && h[8] == ' ' ? TCP_PROTOCOL_HTTP : TCP_PROTOCOL_UNKNOWN;
	}
	protocol = tcp_redis(h, code);
	if (!protocol)
		protocol = tcp_memcached(h, code);
	if (!protocol)
		protocol = tcp_postgresql(h, code);
	if (!protocol)
		protocol = tcp_mysql(h, code);
	return protocol ? protocol : tcp_amqp(h, code);
}

/* The current task has just read from this socket. */
static __always_inline void tcp_answer(void *sk, struct tcp_socket *s)
{
	u8 head[TCP_HEAD] __attribute__((aligned(8))) = {};
	struct tcp_answer_key key = {};
	u32 zero = 0;
	struct control *c = get_control();
	if (s->sock.role != TCP_ROLE_CLIENT || !c || s->proc.pid == c->agent_pid || !tcp_owned(sk) || !tcp_read_head(head, TCP_HEAD))
		return;
	key.protocol = tcp_protocol_of(head, key.code);
	if (!key.protocol)
		return;
	key.pid = s->proc.pid;
	key.netns = s->sock.netns;
	key.dport = s->sock.dport;
	key.uid = uid_of(current_task());
	__builtin_memcpy(key.daddr, s->sock.daddr, 16);
	bool slot = c->slot;
	struct tcp_answer_value *v = slot ? tcp_answers_b.lookup(&key) : tcp_answers_a.lookup(&key);
	if (v) {
		__sync_fetch_and_add(&v->count, 1);
		return;
	}
	if (over_share(key.uid, SHARE_ANSWERS, TCP_ANSWERS_EACH_NS, TCP_ANSWERS_MOST)) {
		lose(LOST_tcp_shares);
		return;
	}
	v = tcp_answer_new.lookup(&zero);
	if (!v)
		return;
	v->count = 1;
	v->proc = s->proc;
	v->sock = s->sock;
	v->uid = key.uid;
	if (slot ? tcp_answers_b.update(&key, v) : tcp_answers_a.update(&key, v))
		lose(LOST_tcp_answers_a);
}
