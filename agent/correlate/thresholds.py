"""What the correlator is told: thresholds, persistence and bounds. Times in the units their names carry."""

from __future__ import annotations

from dataclasses import dataclass

from agent.common.fairness import UpperBound

SECOND = 1_000_000_000


@dataclass(frozen=True)
class CorrelatorConfig:
    """Thresholds of the correlator.

    Every symptom needs an absolute effect *and* one relative to the subject's own baseline, so that neither noise nor a
    slow but steady service is reported.
    """

    clock_min_ns: int = 0  #: smallest step that is a finding also where no limiter's decision fell into it
    clock_alarm_ns: int = 128_000_000  #: a clock jump from this size on is an alarm (the step threshold of RFC 5905)
    slew_min_ns: int = 128_000_000  #: smallest slew that is reported (the step threshold of RFC 5905)
    clock_settle_ns: int = 2 * SECOND  #: how long after |size| a step's effects are still counted
    clock_cap_ns: int = 10 * SECOND  #: and never longer than this

    stall_ns: int = 200_000_000  #: a single decision this slow, far outside its baseline, is a symptom at once
    held_ns: int = 250_000_000  #: ... and several shorter ones, where one or another hung for this long in all
    held_s: int = 3  #: within so many seconds
    held_least: int = 3  #: so many of them
    held_least_ns: int = 20_000_000  #: and each took that much longer than the worst of a usual second
    poll_stall_ns: int = (
        250_000_000  #: a broker that took this long to answer one poll (a poll sees but the end of a stall)
    )
    stall_ratio: float = 20.0  #: ... and this many times its usual time (of decisions, only while that is hardly known)
    latency_rise_ns: int = 20_000_000  #: smallest lasting rise of the median decision time
    tail_rise_ns: int = 100_000_000  #: smallest lasting rise of the time that one decision in ten exceeds
    refusal_rise: float = 0.2  #: smallest lasting rise of the refused share
    refusals_min: int = 10  #: refusals in the persistence window below which nothing is said
    age_rise_s: float = 3.0  #: smallest lasting rise of the oldest undelivered message's age
    pending_rise_s: float = 10.0  #: smallest lasting rise of the oldest unacknowledged message's age
    late_s: float = 0.6  #: a message that waits this long, far longer than is usual in its queue, is a symptom at once
    later_s: float = 0.25  #: ... and one that waits this long, and longer, from one poll to the next
    flooded_s: float = 0.1  #: ... or this long, where far more messages arrive than ever before
    idle_s: float = 2.0  #: a consumer that asks for nothing for this long, while others go on
    lag_rise: float = 100.0  #: smallest lasting rise of the lag in messages, where its age is unknown

    stopped_ns: int = 150_000_000  #: a process that others depend on is stopped for longer (cpulimit: up to 100 ms)
    worker_stopped_ns: int = SECOND  #: ... and one that is only at work, for so long
    lived_ns: int = 10 * SECOND  #: its end is worth a word once it has lived for so long

    silence_ns: int = SECOND  #: the shortest pause that is a silence

    persist_s: int = 5  #: seconds that a lasting rise must last
    explained_s: int = 2  #: ... and one of refusals, where it is seen what they come from
    warm_s: int = 10  #: seconds of baseline that a lasting rise is judged against, at least
    quiet_s: int = 5  #: a finding closes after this many seconds without its symptom
    hold_s: int = 15  #: an episode waits at most this long for the sums of its time, late where CPUs are short
    adopt_s: int = 600  #: a symptom that lasts this long is the new normal
    merge_ns: int = 5 * SECOND  #: symptoms of one cause this near in time are one finding
    burst_ns: int = SECOND  #: jumps of the clock by one actor, each this soon after the one before, are one finding
    undone_ns: int = 1200 * SECOND  #: ... and so are jumps by which processes undo each other's (NTP polls each 1024 s)
    repeat_s: int = 10  #: an open finding that only grew is emitted again this often

    keep_ns: int = 120 * SECOND  #: how far back rows are kept as evidence
    keep_rows: int = 4096  #: per table
    keep_decisions: int = 8192
    pending_rows: int = 50_000  #: per table, waiting for the watermark
    subjects: int = 256  #: limiters, queues, brokers and listeners watched, of each kind
    servers: int = 4096  #: processes that serve an address, known by name
    server_age_ns: int = 600 * SECOND  #: and forgotten when not seen for this long
    max_findings: int = 64  #: open at once
    evidence_floor_ns: int = 5_000_000  #: calls and handshakes shorter than this are no evidence of anything


def with_threshold(jump_threshold_ns: int | None) -> CorrelatorConfig:
    """The defaults with ``--jump-threshold``; None is its default."""
    if jump_threshold_ns is None:
        return CorrelatorConfig()
    return CorrelatorConfig(clock_min_ns=jump_threshold_ns, clock_alarm_ns=jump_threshold_ns)


#: For docs/limits.md.
BOUNDS = (
    UpperBound(
        "findings",
        "rows of a table waiting for the correlator",
        CorrelatorConfig.pending_rows,
        "not used for findings",
        "`status`, `probe_status` row `correlator`, a note of `findings`",
    ),
    UpperBound(
        "findings",
        "limiters, queues, brokers, listeners watched for symptoms",
        CorrelatorConfig.subjects,
        "the others are not watched",
        "`status`, `probe_status` row `correlator`, a note of `findings`",
        "of each kind",
    ),
    UpperBound(
        "findings",
        "open findings",
        CorrelatorConfig.max_findings,
        "the oldest are closed",
        "`status`, `probe_status` row `correlator`, a note of `findings`",
    ),
)
