/* uring FILE COUNT: COUNT writes, fsyncs and reads of FILE through an io_uring, one io_uring_enter() each, by raw system calls.
 * Prints how many completed well, and waits for the end of stdin. */
#include <fcntl.h>
#include <linux/io_uring.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define WORD(ring, at) ((uint32_t *)((ring) + (at)))
#define MAP(size, at) mmap(0, size, PROT_READ | PROT_WRITE, MAP_SHARED, ring, at)

int main(int argc, char **argv)
{
	static const int ops[] = { IORING_OP_WRITE, IORING_OP_FSYNC, IORING_OP_READ };
	static char data[4096];
	struct io_uring_params p = { 0 };
	int ring = syscall(SYS_io_uring_setup, 8, &p), good = 0;

	if (argc != 3 || ring < 0)
		return 2;
	int fd = open(argv[1], O_RDWR | O_CREAT, 0600);
	uint8_t *sq = MAP(p.sq_off.array + p.sq_entries * 4, IORING_OFF_SQ_RING);
	uint8_t *cq = MAP(p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe), IORING_OFF_CQ_RING);
	struct io_uring_sqe *entries = MAP(p.sq_entries * sizeof *entries, IORING_OFF_SQES);

	for (int i = 0; i < 3 * atoi(argv[2]); i++) {
		uint32_t tail = *WORD(sq, p.sq_off.tail), head = *WORD(cq, p.cq_off.head);
		struct io_uring_sqe *e = &entries[tail & *WORD(sq, p.sq_off.ring_mask)];
		int moves = ops[i % 3] != IORING_OP_FSYNC;

		*e = (struct io_uring_sqe){ .opcode = ops[i % 3], .fd = fd, .addr = moves ? (uint64_t)data : 0, .len = moves ? sizeof data : 0 };
		WORD(sq, p.sq_off.array)[tail & *WORD(sq, p.sq_off.ring_mask)] = tail & *WORD(sq, p.sq_off.ring_mask);
		__atomic_store_n(WORD(sq, p.sq_off.tail), tail + 1, __ATOMIC_RELEASE);
		if (syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, 0, 0) < 0)
			return 3;
		struct io_uring_cqe *done = (struct io_uring_cqe *)(cq + p.cq_off.cqes) + (head & *WORD(cq, p.cq_off.ring_mask));
		good += done->res >= 0;
		__atomic_store_n(WORD(cq, p.cq_off.head), head + 1, __ATOMIC_RELEASE);
	}
	printf("%d\n", good);
	fflush(stdout);
	return getchar() == EOF ? 0 : 4;
}
