"""Rate limiters."""

from __future__ import annotations

from agent.columns import boolean, enum, f64, i64, text
from agent.tables.shared import INTERVAL, PROC, table

#: Of watching a decision of a Go program at its begin and its return (docs/costs.md), ns.
WATCHED_NS = 12_000

DECLARED = (
    table(
        "limiter_decision",
        "one decision of a rate limiter",
        *PROC,
        text("limiter_id", 64, "which limiter: the program, what it is, and who asks it", "rate_limiting.limiter.id"),
        text("library", 48, "limiter library"),
        text("library_version", 24, "its version"),
        enum("source", "uprobe socket otlp redis", "how it was seen"),
        text("key", 64, "limited key, hashed or cut", "rate_limiting.key"),
        enum(
            "result",
            "allowed refused delayed error cancelled",
            "the decision; cancelled: the caller gave up before it was let go",
            "rate_limiting.result",
        ),
        f64("cost", "units asked for"),
        f64("limit_per_s", "configured rate; null where unknown, or unlimited", "1/s"),
        f64("burst", "configured burst"),
        i64("window_ns", "window of the limit", "ns"),
        f64("remaining", "units left"),
        i64("wait_ns", "delay imposed; a cancelled one did not last as long", "ns"),
        i64(
            "duration_ns",
            "time that it took; it ended at t_ns. A call that waits ends when its wait does. Null where only its end"
            " was watched",
            "ns",
        ),
        i64("program_wall_ns", "wall time that the program used", "ns"),
        boolean("step_immune", "the limiter's clock ignores steps"),
        i64("goroutine", "Go's g address", "", "go.goroutine"),
        text("trace_id", 32, "W3C trace id"),
        text("span_id", 16, "W3C span id"),
        f64("sample_rate", "share of decisions seen"),
        boolean("unlimited", "there is no limit: every decision is allowed"),
        i64(
            "member",
            "which of those that one place asks: its address in the process; the same place may have one a customer",
        ),
        i64(
            "probe_ns",
            "what the probes added to duration_ns, as measured on this machine; it is taken off already",
            "ns",
        ),
        measure="duration_ns",
    ),
    table(
        "limiter",
        "where a limiter of a Go program is asked, when it was first seen, and each hour that it is in use",
        text("limiter_id", 64, "which limiter", "rate_limiting.limiter.id"),
        text("program", 48, "the program, as its build names it"),
        text("path", 128, "its file"),
        text("build_id", 48, "which build: Go's content id, else the GNU build id"),
        text("library", 48, "limiter library"),
        text("library_version", 24, "its version"),
        text("site", 160, "the first function outside the library that asks it"),
        text("file", 96, "its source file, the last two elements"),
        i64("line", "where it asks, in this build"),
        measure="line",
    ),
    table(
        "limiter_rate",
        "a limiter that is watched a part of the time only, because it decides too often: what it decided in an"
        " interval",
        *PROC,
        text(
            "limiter_id",
            64,
            "which limiter; others: those of the process beyond the 64 that decide most",
            "rate_limiting.limiter.id",
        ),
        text("library", 48, "limiter library"),
        text("library_version", 24, "its version"),
        INTERVAL,
        i64("watched_ns", "of it, watched", "ns"),
        i64(
            "seen_allowed",
            "decisions that were seen and let through, at once or after a delay; each is a row of limiter_decision",
        ),
        i64("seen_refused", "and that were seen and not let through"),
        i64("allowed", "let through in the interval"),
        i64("allowed_low", "at least, 95 in 100 times"),
        i64("allowed_high", "at most, 95 in 100 times; null: the probes set the pace, so allowed is at least so many"),
        i64("refused", "not let through in the interval, as if watching it did not slow its callers"),
        i64("refused_low", "at least, 95 in 100 times"),
        i64(
            "refused_high",
            "at most, 95 in 100 times, as if its callers had waited for the probes; null: the probes set the pace, so"
            " refused is at least so many",
        ),
        enum(
            "basis",
            "bucket windows bounds",
            "where allowed is from: the limiter's own bucket, exactly; what windows say of the time between them; or"
            " bounds that the bucket sets, which filled or was given something twice",
        ),
        f64(
            "pace",
            "how many times as often it may decide while it is not watched, if its callers wait for the answers; null:"
            " not known, the probes set the pace",
        ),
        measure="refused",
    ),
    table(
        "limiter_jump",
        "a limiter near a jump of the wall clock that is a finding: what it decided from the jump to t_ns, and what it"
        " would have decided on true time",
        text("limiter_id", 64, "which limiter", "rate_limiting.limiter.id"),
        i64("member", "which of those that one place asks"),
        text("library", 48, "limiter library"),
        text("library_version", 24, "its version"),
        i64("pid", "its process; null where several have one state", "", "process.pid"),
        text("comm", 16, "its command name", "process.command"),
        i64("jump_t_ns", "the jump, CLOCK_BOOTTIME", "ns"),
        i64("size_ns", "how far it moved the wall clock", "ns"),
        enum("direction", "forward backward", "which way", "direction"),
        enum("quality", "exact bounded estimated", "how good the counts are; null: nothing is counted"),
        text("reason", 160, "why they are no better"),
        text("algorithm", 48, "the model that decided again"),
        i64("decisions", "decisions that were replayed"),
        i64("admitted_program", "admitted by its clock"),
        i64("refused_program", "refused by its clock"),
        i64("admitted_true", "admitted on true time"),
        i64("refused_true", "refused on true time"),
        i64("over_admitted", "admitted by its clock, refused on true time; bounded: at least"),
        i64("wrongly_refused", "the other way round; bounded: at least"),
        i64("over_admitted_most", "with quality bounded, at most"),
        i64("wrongly_refused_most", "with quality bounded, at most"),
        i64("excess", "how far the admitted got ahead of true time at most (below 0: behind)"),
        i64("excess_from_ns", "from when, CLOCK_BOOTTIME", "ns"),
        i64("excess_to_ns", "and until when", "ns"),
        i64("windows_overlapped", "windows on its clock that came twice"),
        i64("windows_skipped", "and that never came"),
        measure="over_admitted",
    ),
)
