/* How long a process takes to answer on connections that it accepted: from the arrival of what it reads to what it
 * writes next. Part of the tcp family, after tcp_rtt.h.
 *
 * No hook of its own: the kernel notes in each socket when data last arrived (lrcvtime), when data was last sent
 * (lsndtime), and for how long written data was under way (chrono_*: RFC 4898's busy time, from the write into an empty
 * queue to the last acknowledgement). A socket is sampled when its process reads, at most once per gate (see
 * tcp_rtt.h), when its state changes, and, while an answer is outstanding, twice a second by the agent, which runs
 * on_tcp_sweep for it (agent/probes/tcp.py). So an answer is seen a little later than it is given, and in ticks.
 * Requests that were read within one gate count as one: all but the last were quick, and the last one's wait is counted
 * from the gate's end, which is at most a gate too little. A connection begins with several requests at once (a login,
 * then a question), so its first reads are sampled without a gate. */

#define TCP_SERVED_BUCKETS 48
#define TCP_SERVED_EACH_NS 4000000	/* of a user's processes and ports in an interval of a second */
#define TCP_SERVED_MOST 256
#define TCP_MSG_IOV 16		/* of struct user_msghdr: msg_iov */

struct tcp_served_key {
	u32 pid;
	u32 netns;
	u16 port;
	u16 pad;
};

struct tcp_served_value {
	u64 requests;
	u64 unanswered;
	u64 waiting;
	u64 sum_ns;
	u64 max_ns;
	u64 max_from_ns;	/* arrival of the slowest one's request */
	struct proc proc;	/* of the slowest: tid read it */
	struct sock_ref sock;
	u32 uid;
	u32 pad;
	u32 buckets[48];	/* TCP_SERVED_BUCKETS */
};

BPF_TABLE("hash", struct tcp_served_key, struct tcp_served_value, tcp_served_a, 2048);
BPF_TABLE("hash", struct tcp_served_key, struct tcp_served_value, tcp_served_b, 2048);
BPF_TABLE("array", u32, struct tcp_served_value, tcp_served_zero, 1);	/* never written: too large for the stack */

/* By a hash of the socket: sockets with a recent request, for the agent's sweep. */
BPF_F_TABLE("array", u32, u64, tcp_asking, 1 << TCP_PLACES_LOG2, BPF_F_MMAPABLE);

/* The kernel's notes of a socket now; times in ticks. */
struct tcp_notes {
	u32 in;			/* segments with data */
	u32 out;
	u32 wrote;		/* the next byte that the process writes */
	u32 busy;		/* ticks in which data was under way, until `end` */
	u32 end;
};

static __always_inline void tcp_notes_of(struct tcp_notes *n, void *sk, u32 now)
{
	u32 una = 0, stat[3] = {};
	GET(n->in, sk, tcp_sock, data_segs_in);
	GET(n->out, sk, tcp_sock, data_segs_out);
	GET(n->wrote, sk, tcp_sock, write_seq);
	GET(una, sk, tcp_sock, snd_una);
	GET(n->end, sk, tcp_sock, chrono_start);
	GET(stat, sk, tcp_sock, chrono_stat);
	n->busy = stat[0] + stat[1] + stat[2];
	if (una != n->wrote) {
		n->busy += now - n->end;
		n->end = now;
	}
}

static __always_inline struct tcp_served_value *tcp_served_of(struct tcp_socket *s)
{
	u32 zero = 0;
	struct tcp_served_key key = {.pid = s->proc.pid, .netns = s->sock.netns, .port = s->sock.sport};
	struct control *c = get_control();
	if (!c || key.pid == c->agent_pid)
		return 0;
	bool slot = c->slot;
	struct tcp_served_value *v = slot ? tcp_served_b.lookup(&key) : tcp_served_a.lookup(&key);
	if (v)
		return v;
	struct tcp_served_value *none = tcp_served_zero.lookup(&zero);
	if (!none)
		return 0;
	if (over_share(s->uid, SHARE_SERVED, TCP_SERVED_EACH_NS, TCP_SERVED_MOST)) {
		lose(LOST_tcp_shares);
		return 0;
	}
	if (slot) {
		tcp_served_b.insert(&key, none);
		v = tcp_served_b.lookup(&key);
	} else {
		tcp_served_a.insert(&key, none);
		v = tcp_served_a.lookup(&key);
	}
	if (!v) {
		lose(LOST_tcp_served_a);
		return 0;
	}
	v->proc = s->proc;
	v->sock = s->sock;
	v->uid = s->uid;
	return v;
}

static __always_inline void tcp_slowest(struct tcp_served_value *v, struct tcp_socket *s, u64 ns, u32 now)
{
	if (ns <= v->max_ns)
		return;
	v->max_ns = ns;
	v->max_from_ns = bpf_ktime_get_boot_ns() - (u64)(now - s->asked) * TCP_TICK_NS;
	v->proc = s->proc;
	v->proc.tid = s->asked_tid;
	v->sock = s->sock;
}

/* requests: answered since the last sample; the last of them after `ticks`. */
static __always_inline void tcp_served(struct tcp_socket *s, u32 requests, u32 ticks, u32 now)
{
	struct tcp_served_value *v = tcp_served_of(s);
	u64 ns = (u64)ticks * TCP_TICK_NS;
	if (!v)
		return;
	__sync_fetch_and_add(&v->requests, requests);
	if (!ticks)
		return;
	__sync_fetch_and_add(&v->sum_ns, ns);
	u32 bucket = log2_bucket(ns);
	if (bucket < TCP_SERVED_BUCKETS)
		__sync_fetch_and_add(&v->buckets[bucket], 1);
	tcp_slowest(v, s, ns, now);
}

/* The beginning of what the current process has just read, from the buffer of its call; 0 if unknown. If less was read,
 * the rest of the `size` bytes is older content of the buffer. */
static __always_inline u64 tcp_read_head(u8 *head, u32 size)
{
	u64 at = 0, nr = 0, room = 0;
	void *regs = call_regs(current_task());
	GET_REG(nr, regs, CALL_NUMBER);
	GET_REG(at, regs, CALL_ARG2);
	GET_REG(room, regs, CALL_ARG3);
	u64 vector[2] = {at, room};
	if (nr == NR_recvmsg && bpf_probe_read_user(&at, sizeof(at), (const void *)(at + TCP_MSG_IOV)))
		return 0;
	if ((nr == NR_recvmsg || nr == NR_readv) && bpf_probe_read_user(vector, sizeof(vector), (const void *)at))
		return 0;
	if (nr != NR_read && nr != NR_recvfrom && nr != NR_recvmsg && nr != NR_readv)
		return 0;
	return bpf_probe_read_user(head, size, (const void *)vector[0]) ? 0 : vector[1];
}

/* Whether that is a beginning of HTTP/2: a client's preface, or, for a connection that is older than the probe, a frame
 * with a request's headers. Checked once per connection. */
static __always_inline bool tcp_frames(void)
{
	u8 head[9] = {};
	if (!tcp_read_head(head, sizeof(head)))
		return false;
	if (head[0] == 'P' && head[1] == 'R' && head[2] == 'I' && head[3] == ' ' && head[4] == '*')
		return true;
	return !head[0] && head[3] == 1 && head[4] & 4 && !(head[5] & 0x80) && head[8] & 1;
}

/* Whether so many bytes of HTTP/2 are one or two PING or WINDOW_UPDATE frames, which peers exchange without requests.
 */
static __always_inline bool tcp_control(u32 bytes)
{
	return bytes == 13 || bytes == 17 || bytes == 26 || bytes == 30 || bytes == 34 || bytes == 43 || bytes == 47;
}

/* For HTTP/2: skips control frames since the last sample. Returns whether the read data is such, too. */
static __always_inline bool tcp_passes(void *sk, struct tcp_socket *s, struct tcp_notes *n, bool reads)
{
	u32 at = 0;
	bool first = !s->took;
	if (n->wrote != s->wrote && tcp_control(n->wrote - s->wrote)) {
		s->wrote = n->wrote;
		s->out = n->out;
		s->busy = n->busy;
	}
	if (!reads)
		return false;
	GET(at, sk, tcp_sock, copied_seq);
	u32 took = at - s->took;
	s->took = at;
	return !first && tcp_control(took);
}

/* A sample of a socket. reads: its process, the current one, has just read from it. ends: no further answer comes. */
static __always_inline void tcp_serve(void *sk, struct tcp_socket *s, bool reads, bool ends)
{
	u32 now = bpf_jiffies64(), came = 0, sent = 0;
	struct tcp_notes n = {};
	if (s->sock.role != TCP_ROLE_SERVER || (!reads && !s->asks))
		return;
	tcp_notes_of(&n, sk, now);
	if (reads && !s->seen)
		s->frames = tcp_frames();
	if (s->frames && tcp_passes(sk, s, &n, reads)) {
		reads = false;
		if (!s->asks)
			return;
	}
	u32 in = n.in - s->in, out = n.out - s->out;
	if (s->asks && n.wrote != s->wrote) {
		u32 answered = n.end - (n.busy - s->busy), asked = in > reads ? s->asked_until : s->asked;
		GET(sent, sk, tcp_sock, lsndtime);
		if ((s32)(sent - s->asked) >= 0 && (s32)(sent - answered) < 0)
			answered = sent;
		u32 ticks = (s32)(answered - asked) > 0 ? answered - asked : 0;
		u32 requests = s->frames ? 1 : in < out ? in : out;	/* HTTP/2's segments include control frames */
		s->asked = asked;
		tcp_served(s, requests ? requests : 1, ticks, now);
		s->asks = 0;
	} else if (s->asks && ends) {
		struct tcp_served_value *v = tcp_served_of(s);
		if (v)
			__sync_fetch_and_add(&v->unanswered, 1);
		s->asks = 0;
	}
	if (!reads || (s->seen && !in))
		return;
	GET(came, sk, inet_connection_sock, lrcvtime);
	if (!s->asks) {
		u32 place = tcp_place((u64)sk);
		u64 *at = tcp_asking.lookup(&place);
		if (at)
			*at = (u64)sk;
	}
	s->asks = s->seen = 1;
	s->asked = came;
	s->asked_until = ((now >> TCP_RTT_GATE_SHIFT) + 1) << TCP_RTT_GATE_SHIFT;
	s->asked_tid = s->user;
	s->in = n.in;
	s->out = n.out;
	s->wrote = n.wrote;
	s->busy = n.busy;
}

/* Never attached: run for a socket of tcp_asking, whose address is args[0]. Returns whether it still waits for an
 * answer. */
int on_tcp_sweep(struct bpf_raw_tracepoint_args *ctx)
{
	u64 key = ctx->args[0];
	u32 now = bpf_jiffies64();
	struct tcp_socket *s = tcp_sockets.lookup(&key);
	if (!s || !s->asks)
		return 0;
	tcp_serve((void *)key, s, false, false);
	u64 ns = (u64)(now - s->asked) * TCP_TICK_NS;
	if (!s->asks || (s32)(now - s->asked) < 0 || ns < TCP_WAITING_NS)
		return s->asks;
	struct tcp_served_value *v = tcp_served_of(s);
	if (v) {
		__sync_fetch_and_add(&v->waiting, 1);
		tcp_slowest(v, s, ns, now);
	}
	return 1;
}
