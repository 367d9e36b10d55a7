/* The data that is sent of Redis connections, the state of each, and the agent's requests
 * (agent/redis_wire/redis_source.py). */
#define REDIS_PIECE 384
#define REDIS_PIECES 48		/* of one segment: 18 KiB, the text of a script with its arguments */
#define REDIS_HEAD 64
#define REDIS_SAMPLE_NS 1000000000	/* interval of samples of one connection */

enum { REDIS_FIRST, REDIS_WHOLE, REDIS_IGNORED };
enum { REDIS_NOTHING, REDIS_SCRIPT, REDIS_WINDOW };	/* kinds of a first command in redis_commands */

struct redis_piece {
	u64 t_ns;
	u64 flow;		/* a connection, within its network namespace */
	u64 idle_ns;		/* since the last segment in either direction */
	u32 seq;		/* of the first byte */
	u32 ack;
	u32 end;		/* sequence number after the segment */
	u32 netns;
	u16 size;
	u16 server_port;
	u16 client_port;
	u8 reply;
	u8 first;		/* of its segment */
	u8 gap;			/* requests before this one were left out */
	u8 state;
	u8 at_server;		/* proc is the server's, else the client's */
	u8 pad;
	u32 skipped;		/* requests for decisions of the connection left out since the last one */
	u8 server[16];		/* IPv4 as v4-mapped */
	u8 client[16];
	struct proc proc;
	u8 data[384];
};

struct redis_flow {
	u64 seen_ns;
	u64 until_ns;		/* end of being ignored */
	u64 sampled_ns;
	u32 state;
	u32 skipped;
	u8 pending;		/* the last segment was a request */
	u8 left_out;		/* the last request was left out */
	u8 limits;		/* it had a limiter's request */
	u8 pad[5];
	u32 asked;		/* without sequence numbers (redis_stream.h): bytes of requests and replies */
	u32 answered;
};

struct redis_name {
	char text[16];		/* capitals */
};

/* Written by the agent, except the counts. */
struct redis_switch {
	u64 asked;		/* requests that begin with a script's or module's command */
	u64 sent;		/* of these, sent */
	u64 each_ns;	/* a user's share of decisions (bpf/tickscope.h), by the local end: one per each_ns ... */
	u64 most;		/* ... and a burst of so many */
	u64 piece_ns;		/* budget of records, for all users: one per piece_ns, a burst ... */
	u64 piece_room_ns;
	u64 piece_until_ns;
	/* burst for connections with a known user (redis_stream.h), which have budgets of their own */
	u64 most_pieces;
	u64 cut;		/* segments left out or cut by the budget of records */
	u64 encrypted;		/* segments of requests in TLS, which cannot be read */
	u64 remote;		/* wanted segments from or to other hosts */
	u64 local;		/* wanted parts of Unix sockets' streams */
	u32 lengths[32];	/* of redis_commands, by first letter: a bit per length; saves most look-ups */
	u64 least;		/* words of a SET, before it is looked up */
	u64 samples;		/* requests sent regardless of their command: a limiter's may be behind another */
};

BPF_F_TABLE("array", u32, struct redis_switch, redis_switch, 1, BPF_F_MMAPABLE);
BPF_F_TABLE("array", u32, u64, redis_ports, 1024, BPF_F_MMAPABLE);	/* a bit per port */
BPF_F_TABLE("array", u32, u64, redis_clients, 1024, BPF_F_MMAPABLE);	/* the same for clients' ports */
/* the kind, and in the second byte the least number of words */
BPF_TABLE("hash", struct redis_name, u32, redis_commands, 256);
BPF_TABLE("lru_hash", u64, struct redis_flow, redis_flows, 8192);
#define REDIS_PAGES 256
BPF_RINGBUF_OUTPUT(redis_pieces, REDIS_PAGES);

static __always_inline u64 redis_pieces_flags(void)
{
	return wake_each(LOST_redis_pieces, RING_QUARTER(REDIS_PAGES, struct redis_piece));
}
