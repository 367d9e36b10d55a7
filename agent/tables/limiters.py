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
        text("limiter_id", 64, "id of the limiter: program, limiter and caller", "rate_limiting.limiter.id"),
        text("library", 48, "limiter library"),
        text("library_version", 24, "version of the library"),
        enum("source", "uprobe socket otlp redis", "how the decision was observed"),
        text("key", 64, "the key that is limited, hashed or cut", "rate_limiting.key"),
        enum(
            "result",
            "allowed refused delayed error cancelled",
            "the decision; cancelled: the caller gave up during its delay",
            "rate_limiting.result",
        ),
        f64("cost", "requested units"),
        f64("limit_per_s", "configured rate; null where unknown, or unlimited", "1/s"),
        f64("burst", "configured burst"),
        i64("window_ns", "window of the limit", "ns"),
        f64("remaining", "units left"),
        i64("wait_ns", "imposed delay; a cancelled delay ended earlier", "ns"),
        i64(
            "duration_ns",
            "duration of the decision, including the overhead of the probes (docs/costs.md) and any delay"
            " within the call; ends at t_ns",
            "ns",
        ),
        i64("program_wall_ns", "wall time that the limiter used, ns since 1970", "ns"),
        boolean("step_immune", "whether steps of the wall clock leave the limiter's decisions unchanged"),
        i64("goroutine", "Go's g address", "", "go.goroutine"),
        text("trace_id", 32, "W3C trace id"),
        text("span_id", 16, "W3C span id"),
        f64("sample_rate", "share of the decisions that have rows, 0 to 1"),
        boolean("unlimited", "there is no limit: every decision is allowed"),
        i64(
            "member",
            "address of the limiter in the process; distinguishes limiters with the same limiter_id, for"
            " example one per customer",
        ),
        i64(
            "unexpired_ns",
            "age of a counter in Redis that no longer expires; null: the counter expires, or this is unknown",
            "ns",
        ),
        i64(
            "reporter_uid",
            "real user id of the process that reported the decision; null: it was observed, or the user is unknown",
        ),
        enum(
            "role",
            "client server",
            "source redis: whether the process asked Redis (client), or is the Redis server that answered",
            "network.role",
        ),
        measure="duration_ns",
    ),
    table(
        "limiter",
        "a place in a Go program that calls a limiter. A row is written at the first call, and each hour while in use",
        text("limiter_id", 64, "id of the limiter", "rate_limiting.limiter.id"),
        text("program", 48, "the program, as its build names it"),
        text("path", 128, "path of the program's file"),
        text("build_id", 48, "build: Go's content id, else the GNU build id"),
        text("library", 48, "limiter library"),
        text("library_version", 24, "its version"),
        text("site", 160, "the first function outside the library on the call stack"),
        text("file", 96, "source file of that function, last two components of the path"),
        i64("line", "line of the call, in this build"),
        measure="line",
    ),
    table(
        "limiter_rate",
        "the estimated number of decisions of one limiter of a sampled (hot) program in an interval. Over several"
        " intervals, add up allowed, and likewise the bounds",
        *PROC,
        text(
            "limiter_id",
            64,
            "id of the limiter; `others`: all beyond the first 256 of a program",
            "rate_limiting.limiter.id",
        ),
        text("library", 48, "limiter library"),
        text("library_version", 24, "its version"),
        INTERVAL,
        i64("watched_ns", "part of the interval with probes attached", "ns"),
        i64("seen_allowed", "admitted while the probes were attached; each decision is a row of limiter_decision"),
        i64("seen_refused", "refused while the probes were attached"),
        i64("allowed", "admitted in the interval: seen_allowed, scaled"),
        i64("allowed_low", "lower end of the 95 % interval"),
        i64("allowed_high", "upper end; null: the probes slowed the program down, so allowed is a lower bound"),
        i64("refused", "refused in the interval: seen_refused, scaled"),
        i64("refused_low", "lower end of the 95 % interval"),
        i64("refused_high", "upper end; null: the probes slowed the program down, so refused is a lower bound"),
        measure="refused",
    ),
    table(
        "limiter_jump",
        "the decisions of one limiter from a clock jump (a finding) to t_ns: as made on the program's clock, and as a"
        " replay makes them on true time, without the jump",
        text("limiter_id", 64, "id of the limiter", "rate_limiting.limiter.id"),
        i64("member", "address of the limiter in the process, as in limiter_decision"),
        text("library", 48, "limiter library"),
        text("library_version", 24, "its version"),
        i64("pid", "process of the limiter; null: several processes share its state", "", "process.pid"),
        text("comm", 16, "command name of that process", "process.executable.name"),
        i64("jump_t_ns", "time of the jump, CLOCK_BOOTTIME", "ns"),
        i64("size_ns", "size of the jump (negative: back)", "ns"),
        enum("direction", "forward backward", "direction of the jump", "direction"),
        enum("quality", "exact bounded estimated", "quality of the counts; null: no counts"),
        text("reason", 160, "reason of that quality"),
        text("algorithm", 48, "model that replayed the decisions"),
        i64("decisions", "replayed decisions"),
        i64("admitted_program", "admitted on the program's clock"),
        i64("refused_program", "refused on the program's clock"),
        i64("admitted_true", "admitted on true time"),
        i64("refused_true", "refused on true time"),
        i64("over_admitted", "admitted on the program's clock, refused on true time; quality bounded: a lower bound"),
        i64("wrongly_refused", "refused on the program's clock, admitted on true time; quality bounded: a lower bound"),
        i64("over_admitted_most", "quality bounded: upper bound"),
        i64("wrongly_refused_most", "quality bounded: upper bound"),
        i64("excess", "largest number of units admitted in excess of true time (negative: too few)"),
        i64("excess_from_ns", "start of the excess, CLOCK_BOOTTIME", "ns"),
        i64("excess_to_ns", "end of the excess, CLOCK_BOOTTIME", "ns"),
        i64("windows_overlapped", "windows that occurred twice on the program's clock"),
        i64("windows_skipped", "windows that the program's clock skipped"),
        measure="over_admitted",
    ),
)
