/* The command of a Redis request, if the agent has named it (redis_commands of bpf/redis_piece.h). */
static __always_inline u64 redis_capitals(u64 text)
{
	u64 low = text & 0x7f7f7f7f7f7f7f7full;
	u64 letters = ~text & ((low + 0x1f1f1f1f1f1f1f1full) ^ (low + 0x0505050505050505ull)) & 0x8080808080808080ull;
	return text - (letters >> 2);
}

static __always_inline u64 redis_mask(u64 bytes)
{
	return bytes >= 8 ? ~0ull : (1ull << bytes * 8) - 1;
}

/* The kind of a command in redis_commands; nothing if the request has fewer words than required. */
static __always_inline u32 redis_kind_of(const u8 *head, const u32 *what)
{
	u32 w = what ? *what : REDIS_NOTHING;
	return head[2] == '\r' && (u32)(head[1] & 15) < w >> 8 ? REDIS_NOTHING : w & 255;
}

/* The beginning of a request: *NUMBER $LENGTH NAME. Without loops and with few branches, each of which the verifier
 * would follow to the end. Bit 5 is set in a digit, and clear in a carriage return. */
static __always_inline u32 redis_command_kind(const u8 *head, struct redis_switch *w)
{
	struct redis_name n;
	u64 *words = (u64 *)&n;
	u8 length[4] = {};
	if (head[0] != '*')
		return REDIS_NOTHING;
	if (head[2] == '\r' && head[6] == '\r') {	/* most */
		u64 bytes = head[5] & 15;
		if (!(w->lengths[head[8] & 31] >> bytes & 1))
			return REDIS_NOTHING;
		if (bytes == 3 && (head[8] & 31) == ('S' & 31) && (head[1] & 15) < w->least)	/* nearly each SET */
			return REDIS_NOTHING;
		words[0] = redis_capitals(((u64 *)head)[1]) & redis_mask(bytes);
		words[1] = redis_capitals(((u64 *)head)[2]) & redis_mask(bytes < 8 ? 0 : bytes - 8);
		return redis_kind_of(head, redis_commands.lookup(&n));
	}
	u64 two = head[2] >> 5 & 1, three = head[3] >> 5 & two, four = head[4] >> 5 & three;
	u64 at = redis_most(two + three + four, 3);
	/* after the first digit: a line's end and the dollar, if any */
	bpf_probe_read_kernel(length, 4, head + 4 + at);
	bpf_probe_read_kernel(&n, 16, head + 8 + at);
	u64 digits = length[2] >> 5 & 1;
	if (length[0] != '$')
		return REDIS_NOTHING;
	if (digits)
		bpf_probe_read_kernel(&n, 16, head + 9 + at);
	u64 bytes = digits ? (length[1] & 15) * 10 + (length[2] & 15) : length[1] & 15;
	if (bytes > 16)
		return REDIS_NOTHING;
	words[0] = redis_capitals(words[0]) & redis_mask(bytes);
	words[1] = redis_capitals(words[1]) & redis_mask(bytes < 8 ? 0 : bytes - 8);
	return redis_kind_of(head, redis_commands.lookup(&n));
}
