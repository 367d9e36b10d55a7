/* Redis requests and replies on Unix sockets. The kernel frees a buffer (consume_skb) when a process, the current task,
 * has read it to its end, and the bytes are still in it. The reader of a request is the server, the reader of a reply
 * its client; a reply's buffer was written by the end with a name. Data above 3.7 KB is in pages, which can be read
 * since 6.12 (redis_segment.h); on kernels from 5.8 on redis_unix_short sees the rest. */
#define REDIS_AF_UNIX 1
#define REDIS_SOCK_STREAM 1
#define REDIS_PATH 108
#define REDIS_UNIX_PLACES 16384

struct redis_path {
	u32 length;
	char text[108];
};

BPF_TABLE("lru_hash", u64, struct redis_path, redis_paths, 64);	/* of servers' sockets, by their number in a piece */
/* connections of which something was wanted; bits would need atomics of 5.12 */
BPF_TABLE("array", u32, u8, redis_unix_known, REDIS_UNIX_PLACES);

#if HAS_unix_sock__addr && HAS_unix_sock__peer && HAS_socket_alloc__vfs_inode
/* A number for the address that a listener and its accepted sockets share. Its name is kept, and is part of the number,
 * since another server's address may be at the same place later. */
static __always_inline u64 redis_unix_server(void *address)
{
	struct redis_path path = {};
	u64 id = redis_mix((u64)address, UNKNOWN64), word;
	READ(path.length, address, unix_address, len);
	path.length = redis_most(path.length < 2 ? 0 : path.length - 2, REDIS_PATH);
	u64 n = redis_most(path.length, REDIS_PATH);
	bpf_probe_read_kernel(path.text, n, ADDR(address, unix_address, name) + 2);
#pragma unroll
	for (int i = 0; i < (int)sizeof(path); i += 8) {
		__builtin_memcpy(&word, (const char *)&path + i, 8);
		id = redis_mix(id, word);
	}
	if (!redis_paths.lookup(&id))
		redis_paths.update(&id, &path);
	return id;
}

static __always_inline u64 redis_unix_inode(void *sk)
{
	u64 inode = 0;
	void *socket = PTR(sk, sock, sk_socket);
	if (socket)
		READ(inode, ADDR(socket, socket_alloc, vfs_inode), inode, i_ino);
	return inode;
}

/* The writer of a Unix stream socket's buffer; 0 for any other buffer. */
static __always_inline void *redis_unix_writer(void *skb)
{
	u16 family = 0, type = 0;
	if (PTR(skb, sk_buff, dev))
		return 0;
	void *writer = PTR(skb, sk_buff, sk);
	if (!writer)
		return 0;
	READ(family, writer, sock_common, skc_family);
	if (family != REDIS_AF_UNIX)
		return 0;
	READ(type, writer, sock, sk_type);
	return type == REDIS_SOCK_STREAM ? writer : 0;
}

static __always_inline int redis_unix_read(u32 where, void *skb, void *writer, void *packet)
{
	u32 len = 0, paged = 0, zero = 0, done = 0;
	u8 begin = 0;
	bool first = true;
	void *server, *address;
	struct redis_stream s = {.from = PTR(skb, sk_buff, data), .packet = packet};
	address = PTR(writer, unix_sock, addr);
	s.reply = !!address;
	server = address ? writer : PTR(writer, unix_sock, peer);
	if (!server)
		return 0;
	u32 place = redis_mix((u64)server, 0) & (REDIS_UNIX_PLACES - 1);
	u8 *wanted = redis_unix_known.lookup(&place);
	if (!wanted)
		return 0;
	if (!*wanted) {
		if (s.reply || redis_copy(where, &s, 0, &begin, 1) || begin != '*')
			return 0;
	}
	if (!address)
		address = PTR(server, unix_sock, addr);
	struct redis_switch *w = redis_switch.lookup(&zero);
	if (!w || !address)
		return 0;
	READ(len, skb, sk_buff, len);
	READ(paged, skb, sk_buff, data_len);
	s.size = len;
	s.readable = where == REDIS_PACKET ? len : paged < len ? len - paged : 0;
	s.now = bpf_ktime_get_boot_ns();
	s.flow = redis_mix(redis_mix((u64)server, (u64)address), redis_unix_inode(server));
	s.at_server = !s.reply;
	if (s.reply)
		s.uid = uid_of((void *)bpf_get_current_task());	/* the client, in either direction */
	else
		READ(s.uid, writer, sock, sk_uid);
	struct redis_part part;
	struct redis_flow *f = redis_stream_part(where, w, &s, &part);
	if (!f) {
		struct redis_flow *known = redis_flows.lookup(&s.flow);
		if (known && (known->limits || known->state == REDIS_WHOLE))
			return 0;
		*wanted = 0;
		if (known)
			known->pending = 0;	/* its reply is not read */
		return 0;
	}
	*wanted = 1;
	w->local++;
	REDIS_PIECES_BEGIN;
#pragma clang loop unroll(disable)
	while (REDIS_PIECES_NEXT) {
		struct redis_piece *e = redis_stream_piece(where, w, &s, &part, f, done, first);
		if (!e)
			break;
		if (first) {	/* the others have the first one's */
			__builtin_memset(e->client, 0, 16);
			*(u64 *)e->server = 0x58494e5501ull;	/* \1 U N I X: an address of no network (bpf/unix_name.h) */
			*(u64 *)(e->server + 8) = redis_unix_server(address);
			fill_proc(&e->proc, (void *)bpf_get_current_task());
		}
		first = false;
		done += *(volatile u16 *)&e->size;
		redis_pieces.ringbuf_submit(e, redis_pieces_flags());
	}
	REDIS_PIECES_END;
	return 0;
}
#else
static __always_inline void *redis_unix_writer(void *skb)
{
	return 0;
}

static __always_inline int redis_unix_read(u32 where, void *skb, void *writer, void *packet)
{
	return 0;
}
#endif

int redis_unix(struct bpf_raw_tracepoint_args *ctx)
{
#if KFUNC_bpf_dynptr_from_skb && KFUNC_bpf_path_d_path && FUNC_dynptr_read
	void *skb = (void *)ctx->args[0], *writer = redis_unix_writer(skb);
	struct redis_dynptr packet;
	if (!writer)
		return 0;
	redis_dynptr_from_skb(skb, 0, &packet);
	return redis_unix_read(REDIS_PACKET, skb, writer, &packet);
#else
	return 0;
#endif
}

int redis_unix_short(struct bpf_raw_tracepoint_args *ctx)
{
	void *skb = (void *)ctx->args[0], *writer = redis_unix_writer(skb);
	return writer ? redis_unix_read(REDIS_KERNEL, skb, writer, 0) : 0;
}
