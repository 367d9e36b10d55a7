/* Threads of a few processes that reclaim memory themselves: direct reclaim, and compaction for large pages. Attached
 * for seconds only; kernel 5.8. Driven by agent/investigate/. */

enum { RECLAIM_PAGES, RECLAIM_COMPACTION };	/* in the order of the table's enum */

struct reclaim_key {
	u32 pid;
	u32 kind;
};
struct reclaim_value {
	u64 count;
	u64 sum_ns;
	u64 max_ns;
	u64 pages;
	struct proc proc;
};
BPF_TABLE("hash", struct reclaim_key, struct reclaim_value, reclaim_sums, 64);

struct reclaim_who {
	u32 tid;
	u32 kind;
};
BPF_TABLE("lru_hash", struct reclaim_who, u64, reclaim_begun, 1024);	/* LRU, for kernels without an end event */

static __always_inline int reclaim_begins(u32 kind)
{
	u64 now = bpf_ktime_get_boot_ns(), who = bpf_get_current_pid_tgid();
	struct control *c = profile_control(now);
	struct reclaim_who w = {.tid = who, .kind = kind};
	if (c && profile_has(c, who >> 32) && reclaim_begun.update(&w, &now))
		lose(LOST_reclaim_begun);
	return 0;
}

static __always_inline int reclaim_ends(u32 kind, u64 pages)
{
	u64 now = bpf_ktime_get_boot_ns(), who = bpf_get_current_pid_tgid();
	struct reclaim_who w = {.tid = who, .kind = kind};
	struct reclaim_key key = {.pid = who >> 32, .kind = kind};
	struct reclaim_value none = {};
	u64 *begun = reclaim_begun.lookup(&w);
	if (!begun)
		return 0;
	u64 ns = now - *begun;
	reclaim_begun.delete(&w);
	struct reclaim_value *v = reclaim_sums.lookup(&key);
	if (!v) {
		fill_proc(&none.proc, current_task());
		none.proc.tid = UNKNOWN32;
		reclaim_sums.insert(&key, &none);
		v = reclaim_sums.lookup(&key);
	}
	if (!v) {
		lose(LOST_reclaim_sums);
		return 0;
	}
	__sync_fetch_and_add(&v->count, 1);
	__sync_fetch_and_add(&v->sum_ns, ns);
	if (pages)	/* with a constant 0 the compiler emits an atomic or, which needs 5.12 */
		__sync_fetch_and_add(&v->pages, pages);
	if (ns > v->max_ns)
		v->max_ns = ns;
	return 0;
}

int reclaim_on_begin(struct bpf_raw_tracepoint_args *ctx)
{
	return reclaim_begins(RECLAIM_PAGES);
}

int reclaim_on_end(struct bpf_raw_tracepoint_args *ctx)
{
	return reclaim_ends(RECLAIM_PAGES, ctx->args[0]);
}

int reclaim_on_cgroup_begin(struct bpf_raw_tracepoint_args *ctx)
{
	return reclaim_begins(RECLAIM_PAGES);
}

int reclaim_on_cgroup_end(struct bpf_raw_tracepoint_args *ctx)
{
	return reclaim_ends(RECLAIM_PAGES, ctx->args[0]);
}

int reclaim_on_compaction(struct bpf_raw_tracepoint_args *ctx)
{
	return reclaim_begins(RECLAIM_COMPACTION);
}

int reclaim_on_compacted(struct bpf_raw_tracepoint_args *ctx)
{
	return reclaim_ends(RECLAIM_COMPACTION, 0);
}
