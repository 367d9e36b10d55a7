/* Requests of block devices by device, requesting process and kind: how long they waited and how long the device took.
 * Attached for seconds only, for all processes, since any of them may keep the disk busy. Kernel 5.8. Driven by
 * agent/investigate/. */

enum { BLOCK_READ, BLOCK_WRITE, BLOCK_FLUSH, BLOCK_DISCARD, BLOCK_OTHER };	/* in the order of the table's enum */

struct block_key {
	u64 disk;
	u32 pid;
	u8 op;
	u8 pad[3];
};

struct block_value {
	u64 count;
	u64 unfinished;		/* filled in by user space */
	u64 bytes;
	u64 errors;
	u64 sum_ns;
	u64 max_ns;
	u64 queued_ns;
	struct proc proc;
	char device[16];
	u32 hist[64];
};
BPF_TABLE("hash", struct block_key, struct block_value, block_sums, 512);
BPF_TABLE("array", u32, struct block_value, block_zero, 1);	/* initial value, too large for the stack */

struct block_request {
	u64 begun_ns;		/* requested */
	u64 issued_ns;		/* given to the device */
	u64 bytes;
	u64 disk;
	u32 op;
	u32 pad;
	struct proc proc;
	char device[16];
};
BPF_TABLE("hash", u64, struct block_request, block_requests, 1024);	/* by struct request */

/* Numbers of enum req_op (include/linux/blk_types.h). */
static __always_inline u32 block_op(void *rq)
{
	u32 flags = 0;
	READ(flags, rq, request, cmd_flags);
	flags &= 0xff;
	return flags <= 2 ? flags : flags == 3 || flags == 5 || flags == 9 ? BLOCK_DISCARD : BLOCK_OTHER;
}

static __always_inline void *block_disk(void *rq)
{
#if HAS_request__rq_disk
	return PTR(rq, request, rq_disk);
#elif HAS_request_queue__disk
	return PTR(PTR(rq, request, q), request_queue, disk);
#else
	return 0;
#endif
}

static __always_inline struct block_request *block_begin(u64 rq, u64 now)
{
	struct block_request new = {.begun_ns = now};
	u32 bytes = 0;
	READ(bytes, (void *)rq, request, __data_len);
	new.bytes = bytes;
	new.op = block_op((void *)rq);
	new.disk = (u64)block_disk((void *)rq);
	if (new.disk)
		bpf_probe_read_kernel_str(new.device, sizeof(new.device), ADDR(new.disk, gendisk, disk_name));
	fill_proc(&new.proc, current_task());
	if (block_requests.update(&rq, &new)) {
		lose(LOST_block_requests);
		return 0;
	}
	return block_requests.lookup(&rq);
}

/* In the context of the requesting task (kernel 6.5). */
int block_on_start(struct bpf_raw_tracepoint_args *ctx)
{
	u64 now = bpf_ktime_get_boot_ns();
	if (profile_control(now))
		block_begin(ctx->args[0], now);
	return 0;
}

/* Given to the device, by the requesting task or a kernel thread. Before 5.11 the queue is the first argument. */
int block_on_issue(struct bpf_raw_tracepoint_args *ctx)
{
	u64 now = bpf_ktime_get_boot_ns(), rq = ctx->args[TP_block_rq_issue > 1];
	struct block_request *r;
	if (!profile_control(now))
		return 0;
	r = block_requests.lookup(&rq);
	if (!r)
		r = block_begin(rq, now);
	if (r) {
		u32 bytes = 0;
		READ(bytes, (void *)rq, request, __data_len);	/* includes requests merged since */
		r->bytes = bytes;
		r->issued_ns = now;
	}
	return 0;
}

int block_on_complete(struct bpf_raw_tracepoint_args *ctx)
{
	u64 now = bpf_ktime_get_boot_ns(), rq = ctx->args[0];
	struct block_request *r = block_requests.lookup(&rq);
	struct block_key key = {};
	u32 zero = 0;
	if (!r)
		return 0;
	if (!r->issued_ns || !profile_control(now))
		goto out;
	key.disk = r->disk;
	key.pid = r->proc.pid;
	key.op = r->op;
	struct block_value *v = block_sums.lookup(&key), *none = block_zero.lookup(&zero);
	if (!v && none) {
		block_sums.insert(&key, none);
		v = block_sums.lookup(&key);
		if (v) {
			v->proc = r->proc;
			__builtin_memcpy(v->device, r->device, sizeof(v->device));
		}
	}
	if (!v) {
		lose(LOST_block_sums);
		goto out;
	}
	u64 ns = now - r->issued_ns;
	__sync_fetch_and_add(&v->count, 1);
	__sync_fetch_and_add(&v->bytes, r->bytes);
	__sync_fetch_and_add(&v->sum_ns, ns);
	__sync_fetch_and_add(&v->queued_ns, r->issued_ns - r->begun_ns);
	if ((u32)ctx->args[1] & 0xff)
		__sync_fetch_and_add(&v->errors, 1);
	if (ns > v->max_ns)
		v->max_ns = ns;
	__sync_fetch_and_add(&v->hist[log2_bucket(ns)], 1);
out:
	block_requests.delete(&rq);
	return 0;
}
