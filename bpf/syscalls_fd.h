/* The kind of a call: slow or waiting, by its number and the type of its descriptor; and a socket's peer. */

/* The kind of a blocking call, by number; agent/probes/syscalls.py fills the table. Nothing is reported before. */
enum { SYSCALLS_UNSET, SYSCALLS_IS_SLOW, SYSCALLS_IS_WAITING, SYSCALLS_BY_FD, SYSCALLS_WRITES_FD, SYSCALLS_POLLS,
       SYSCALLS_IS_IDLE };
enum { SYSCALLS_FD_NONE, SYSCALLS_FD_FILE, SYSCALLS_FD_DIR, SYSCALLS_FD_BLOCK, SYSCALLS_FD_CHAR, SYSCALLS_FD_PIPE, SYSCALLS_FD_SOCKET,
       SYSCALLS_FD_ANON };
BPF_F_TABLE("array", u32, u64, syscalls_class, 1024, BPF_F_MMAPABLE);

/* The type of fd, and a socket's peer. */
static __always_inline void syscalls_inspect(struct syscalls_thread *t, void *task, u32 fd)
{
	void *file = file_of(task, fd);
	t->now.inode_type = SYSCALLS_FD_NONE;
	if (!file)
		return;
	switch (mode_of(file) & 0170000) {
	case 0100000: t->now.inode_type = SYSCALLS_FD_FILE; return;
	case 0040000: t->now.inode_type = SYSCALLS_FD_DIR; return;
	case 0060000: t->now.inode_type = SYSCALLS_FD_BLOCK; return;
	case 0020000: t->now.inode_type = SYSCALLS_FD_CHAR; return;
	case 0010000: t->now.inode_type = SYSCALLS_FD_PIPE; return;
	case 0: t->now.inode_type = SYSCALLS_FD_ANON; return;
	case 0140000: break;
	default: return;
	}
	t->now.inode_type = SYSCALLS_FD_SOCKET;
	void *sk = sock_of(file);
	u16 family = 0, port = 0;
	GET(family, sk, sock_common, skc_family);
	GET(port, sk, sock_common, skc_dport);
	if (family == 2) {
		GET(*(u32 *)(t->now.peer_addr + 12), sk, sock_common, skc_daddr);
		t->now.peer_addr[10] = t->now.peer_addr[11] = 0xff;
	} else if (family == 10) {
		bpf_probe_read_kernel(t->now.peer_addr, 16, ADDR(sk, sock_common, skc_v6_daddr));
#if defined(UNIX_PEERS) && HAS_unix_sock__addr && HAS_unix_sock__peer
	} else if (family == UNIX_FAMILY) {
		void *other = PTR(sk, unix_sock, peer), *address = other ? unix_address_of(other) : 0;
		u16 type = 0;
		GET(type, sk, sock, sk_type);
		if (address && type == UNIX_STREAM)	/* the other end is a server's */
			t->now.peer_port = unix_peer_of(t->now.peer_addr, unix_id(other, address));
		return;
#endif
	} else {
		return;
	}
	t->now.peer_port = __builtin_bswap16(port);
	if (!t->now.peer_port)
		__builtin_memset(t->now.peer_addr, 0, 16);
#ifdef DNS_OPEN
	if (t->now.peer_port == DNS_PORT)
		t->dns_sk = (u64)sk;
#endif
	GET(t->now.sock_id, sk, sock_common, skc_cookie);
}

#define SYSCALLS_FUSE (10 << 20 | 229)	/* number of the device /dev/fuse, as the kernel has it */

/* Whether fd is a FUSE daemon's. */
static __always_inline u8 syscalls_is_fuse(void *task, u32 fd)
{
	void *file = file_of(task, fd);
	u32 device = 0;
	if (!file || (mode_of(file) & 0170000) != 0020000)
		return 0;
	GET(device, PTR(file, file, f_inode), inode, i_rdev);
	return device == SYSCALLS_FUSE;
}

/* Whether the file's file system is frozen, as during a snapshot. */
static __always_inline u8 syscalls_frozen(void *file)
{
	u16 level = 0;	/* an int before 5.18, with the same low half */
	GET(level, ADDR(PTR(PTR(file, file, f_inode), inode, i_sb), super_block, s_writers), sb_writers, frozen);
	return level != 0;
}

/* The current thread's call, with its first two arguments. */
static __always_inline void syscalls_classify(struct syscalls_thread *t, void *task, u32 nr, u64 arg1, u64 arg2)
{
	u32 fd = arg1;
	u64 *class = syscalls_class.lookup(&nr);
	u64 is = class ? *class : SYSCALLS_IS_SLOW;	/* numbers beyond the table */
	t->now.peer_port = 0;
	t->now.sock_id = t->dns_sk = 0;
	t->now.frozen = UNKNOWN8;
	__builtin_memset(t->now.peer_addr, 0, 16);
	t->now.nr = nr;
	t->now.kind = is == SYSCALLS_IS_SLOW || is == SYSCALLS_BY_FD || is == SYSCALLS_WRITES_FD ? SYSCALLS_SLOW : SYSCALLS_WAITING;
	t->now.inode_type = SYSCALLS_FD_NONE;
	if (is < SYSCALLS_BY_FD || is == SYSCALLS_IS_IDLE)
		return;
	if (is == SYSCALLS_POLLS && (arg2 != 1 || bpf_probe_read_user(&fd, sizeof(fd), (void *)arg1)))
		return;	/* one descriptor, as for a read with a timeout */
	t->now.fd = fd;
	syscalls_inspect(t, task, fd);
	if (t->now.inode_type == SYSCALLS_FD_FILE || t->now.inode_type == SYSCALLS_FD_DIR)
		t->now.frozen = syscalls_frozen(file_of(task, fd));
	if (is == SYSCALLS_BY_FD && t->now.inode_type != SYSCALLS_FD_FILE && t->now.inode_type != SYSCALLS_FD_DIR && t->now.inode_type != SYSCALLS_FD_BLOCK)
		t->now.kind = SYSCALLS_WAITING;
}

/* A file's name and disk. */
static __always_inline void syscalls_name_file(struct syscalls_event *e, void *file)
{
	void *name = PTR(PTR(file, file, dentry), dentry, name);
	bpf_probe_read_kernel_str(e->fd_name, sizeof(e->fd_name), name);
	if (e->inode_type == SYSCALLS_FD_ANON)
		return;
	void *disk = PTR(PTR(PTR(PTR(file, file, f_inode), inode, i_sb), super_block, s_bdev), block_device, bd_disk);
	if (disk)
		bpf_probe_read_kernel_str(e->device, sizeof(e->device), ADDR(disk, gendisk, disk_name));
}

static __always_inline void syscalls_describe(struct syscalls_event *e, struct syscalls_wait *w)
{
	e->ret = e->goroutine = UNKNOWN64;
	e->sock_id = w->sock_id ? w->sock_id : UNKNOWN64;
	e->inode_type = w->inode_type;
	e->nr = w->nr;
	e->fd = w->inode_type ? w->fd : UNKNOWN32;
	__builtin_memcpy(e->peer_addr, w->peer_addr, sizeof(e->peer_addr));
	e->peer_port = w->peer_port;
	e->kind = w->kind;
	e->frozen = w->frozen;
	e->fuse = w->fuse;
	e->waker_pid = w->waker_pid;
	e->waker_tid = w->waker_tid;
	e->waker_awake_ns = w->waker_awake_ns;
	e->waker_cpu_ns = w->waker_cpu_ns;
	__builtin_memcpy(e->waker_comm, w->waker_comm, sizeof(e->waker_comm));
}

/* The current wait; all but its time, duration and basis. */
static __always_inline void syscalls_fill(struct syscalls_event *e, void *task, struct syscalls_thread *t, u32 tid)
{
	u64 wrote = SYSCALLS_WROTE(GET, task);
	fill_proc(&e->proc, task);
	syscalls_describe(e, &t->now);
	e->blocked_ns = t->blocked_ns;
	e->run_queue_ns = t->run_queue_ns;
	e->written_bytes = wrote == UNKNOWN64 ? wrote : wrote - t->wrote_before;
	__builtin_memset(e->fd_name, 0, sizeof(e->fd_name));
	__builtin_memset(e->device, 0, sizeof(e->device));
	if (e->inode_type == SYSCALLS_FD_ANON || e->inode_type == SYSCALLS_FD_FILE || e->inode_type == SYSCALLS_FD_DIR)
		syscalls_name_file(e, file_of(task, t->now.fd));
	syscalls_name_holder(e, t, tid);
}
