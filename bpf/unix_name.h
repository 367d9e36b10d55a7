/* The number of a Unix socket, which stands for its name and place in a 16-byte address and a port. First in the family
 * of bpf/unix.bpf.c, before families that report peers. */

#define UNIX_PEERS 1		/* for families after this one */
#define UNIX_FAMILY 1
#define UNIX_STREAM 1
#define UNIX_PATH 108
#define UNIX_PRIME 0x100000001b3ull

#if HAS_unix_sock__addr && HAS_unix_sock__peer
/* From a struct unix_address: a hash of its name and of the folder and device of its file, so that sockets of one name
 * in two containers differ. */
static __always_inline u64 unix_id(void *sk, void *address)
{
	u64 hash = 0xcbf29ce484222325ull, word;
	u32 len = 0, dev = 0, inum = 0;
	u64 folder = 0;
	READ(len, address, unix_address, len);
	void *dentry = PTR(ADDR(sk, unix_sock, path), path, dentry);
	if (dentry) {
		READ(dev, PTR(dentry, dentry, d_sb), super_block, s_dev);
		READ(folder, PTR(PTR(dentry, dentry, d_parent), dentry, d_inode), inode, i_ino);
	} else {	/* abstract names belong to a network namespace */
		READ(inum, ADDR(PTR(sk, sock_common, skc_net), net, ns), ns_common, inum);
	}
	const char *name = ADDR(address, unix_address, name) + 2;
	if (len > UNIX_PATH + 2)
		len = UNIX_PATH + 2;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < 14; i++) {
		u32 at = 2 + 8 * i;
		if (at >= len)
			break;
		word = 0;
		bpf_probe_read_kernel(&word, sizeof(word), name + 8 * i);
		if (len - at < 8)
			word &= (1ull << 8 * (len - at)) - 1;
		hash = (hash ^ word) * UNIX_PRIME;
		hash ^= hash >> 29;
	}
	hash = (hash ^ dev ^ folder << 32 ^ inum) * UNIX_PRIME;
	return hash ^ hash >> 32;
}

/* An address that no network uses (0155:4e49:5800::/40 is reserved by the IETF), and a port other than 0. */
static __always_inline u16 unix_peer_of(u8 *addr, u64 id)
{
	*(u64 *)addr = 0x58494e5501ull;	/* \1 U N I X */
	__builtin_memcpy(addr + 8, &id, 8);
	return (u16)(id >> 24) | 1;
}

static __always_inline void *unix_address_of(void *sk)
{
	return PTR(sk, unix_sock, addr);
}
#endif
