/* What is handed over of Redis connections, what is known of each while it lasts, and what the agent asks for (agent/redis_wire/redis_source.py). */
#define REDIS_PIECE 384
#define REDIS_PIECES 48		/* of one segment: 18 KiB, the text of a script with its arguments */
#define REDIS_HEAD 64
#define REDIS_SAMPLE_NS 1000000000	/* of one connection, from sample to sample */

enum { REDIS_FIRST, REDIS_WHOLE, REDIS_IGNORED };
enum { REDIS_NOTHING, REDIS_SCRIPT, REDIS_WINDOW };	/* what a first command may be: of redis_commands */

struct redis_piece {
	u64 t_ns;
	u64 flow;		/* one connection, as one network namespace knows it */
	u64 idle_ns;		/* since the segment before, either way */
	u32 seq;		/* of the first byte */
	u32 ack;
	u32 end;		/* sequence number behind the segment */
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
	u32 skipped;		/* of the connection's requests for decisions, left out since the last one */
	u8 server[16];		/* IPv4 as v4-mapped */
	u8 client[16];
	struct proc proc;
	u8 data[384];
};

struct redis_flow {
	u64 seen_ns;
	u64 until_ns;		/* of being ignored */
	u64 sampled_ns;
	u32 state;
	u32 skipped;
	u8 pending;		/* the last segment was a request */
	u8 left_out;		/* the last request was */
	u8 limits;		/* a limiter's request came */
	u8 pad[5];
	u32 asked;		/* of a connection without sequence numbers (redis_stream.h): bytes of requests, and of answers */
	u32 answered;
};

struct redis_name {
	char text[16];		/* capitals */
};

/* Written by the agent, but for the counts. */
struct redis_switch {
	u64 asked;		/* requests that begin with a script's or module's command */
	u64 told;		/* of these, handed over */
	u64 each_ns;		/* a user's share of decisions (bpf/tickscope.h), of who has the end that is here: one each so many ns ... */
	u64 most;		/* ... and so many at once */
	u64 piece_ns;		/* of records, of all together: so many at once as fit in ... */
	u64 piece_room_ns;
	u64 piece_until_ns;
	u64 most_pieces;	/* of connections whose user is known (redis_stream.h), which have budgets of their own: so many at once */
	u64 cut;		/* segments that the budget of records left out, or cut short */
	u64 encrypted;		/* segments of requests in TLS, of which nothing can be read */
	u64 remote;		/* segments that were wanted and came from elsewhere, or went there */
	u64 local;		/* parts of Unix sockets' streams that were wanted */
	u32 lengths[32];	/* of redis_commands, by their first letter: a bit a length, so that most others need no look-up */
	u64 least;		/* words of a SET, before it is looked up */
	u64 samples;		/* further requests that are handed over, whatever they begin with: a limiter's command may be behind another */
};

BPF_F_TABLE("array", u32, struct redis_switch, redis_switch, 1, BPF_F_MMAPABLE);
BPF_F_TABLE("array", u32, u64, redis_ports, 1024, BPF_F_MMAPABLE);	/* a bit a port */
BPF_F_TABLE("array", u32, u64, redis_clients, 1024, BPF_F_MMAPABLE);	/* the same of clients' ports */
BPF_TABLE("hash", struct redis_name, u32, redis_commands, 256);	/* which of the above, and in the second byte the least words of the request */
BPF_TABLE("lru_hash", u64, struct redis_flow, redis_flows, 8192);
#define REDIS_PAGES 256
BPF_RINGBUF_OUTPUT(redis_pieces, REDIS_PAGES);

static __always_inline u64 redis_pieces_flags(void)
{
	return wake_each(LOST_redis_pieces, RING_QUARTER(REDIS_PAGES, struct redis_piece));
}
