"""Settings of the correlator: thresholds, persistence and bounds. Names carry the units of times."""

from __future__ import annotations

from dataclasses import dataclass

from agent.common.fairness import UpperBound

SECOND = 1_000_000_000


@dataclass(frozen=True)
class CorrelatorConfig:
    """Thresholds of the correlator.

    Every symptom needs an absolute effect and one relative to the subject's own baseline, so that neither noise nor a
    slow but steady service is reported.
    """

    clock_min_ns: int = 0  #: smallest clock step that is a finding even if no limiter is affected
    clock_alarm_ns: int = 128_000_000  #: smallest clock jump that is an alarm (the step threshold of RFC 5905)
    slew_min_ns: int = 128_000_000  #: smallest slew that is reported (the step threshold of RFC 5905)
    clock_settle_ns: int = 2 * SECOND  #: effects of a step are counted for the size of the step plus this time
    clock_cap_ns: int = 10 * SECOND  #: effects of a step are counted for at most this time

    stall_ns: int = 200_000_000  #: one decision slower than this, and far outside its baseline, is a symptom at once
    held_ns: int = (
        250_000_000  #: several slow decisions are a symptom if at least one was pending for this long in total
    )
    held_s: int = 3  #: for held_ns: the decisions are those of this many seconds
    held_least: int = 3  #: for held_ns: smallest number of slow decisions
    held_least_ns: int = 20_000_000  #: for held_ns: smallest rise above the slowest decision of a usual second
    poll_stall_ns: int = 250_000_000  #: a broker that takes this long to answer a poll is a symptom
    stall_ratio: float = 20.0  #: for stall_ns (with a short baseline) and poll_stall_ns: this many times the usual time
    latency_rise_ns: int = 20_000_000  #: smallest lasting rise of the median decision time
    tail_rise_ns: int = 100_000_000  #: smallest lasting rise of the 90th percentile of the decision time
    refusal_rise: float = 0.2  #: smallest lasting rise of the share of refused decisions
    refusals_min: int = 10  #: smallest number of refusals within persist_s
    age_rise_s: float = 3.0  #: smallest lasting rise of the oldest undelivered message's age
    pending_rise_s: float = 10.0  #: smallest lasting rise of the oldest unacknowledged message's age
    late_s: float = 0.6  #: a message that waits this long, and far longer than usual in its queue, is a symptom at once
    later_s: float = 0.25  #: a message that waits this long, and still waits at the next poll, is a symptom
    flooded_s: float = 0.1  #: as later_s, if far more messages arrive than ever before
    idle_s: float = 2.0  #: a consumer without a request for this long, while others continue, is idle
    lag_rise: float = 100.0  #: smallest lasting rise of the lag in messages, if its age is unknown

    stopped_ns: int = 150_000_000  #: longest unreported stop of a process that others depend on (cpulimit: 100 ms)
    worker_stopped_ns: int = SECOND  #: longest unreported stop of a worker process
    lived_ns: int = 10 * SECOND  #: the end of a younger process is not reported

    silence_ns: int = SECOND  #: shortest pause that is a symptom (silence)

    persist_s: int = 5  #: duration of a lasting rise
    explained_s: int = 2  #: duration of a lasting rise of refusals with a known cause
    warm_s: int = 10  #: shortest baseline for judging a lasting rise
    quiet_s: int = 5  #: a finding closes after this many seconds without its symptom
    hold_s: int = 15  #: a symptom waits at most this long after its start for late rows
    adopt_s: int = 600  #: a symptom that lasts this long becomes the new baseline, except for failures
    merge_ns: int = 5 * SECOND  #: symptoms of one cause within this time are one finding
    burst_ns: int = SECOND  #: clock jumps by one process, each within this time of the previous one, are one finding
    undone_ns: int = (
        1200 * SECOND
    )  #: jumps of processes that undo each other's jumps within this time are one finding (NTP polls every 1024 s)
    repeat_s: int = 10  #: interval at which the row of an open finding is updated, if only its duration changes

    keep_ns: int = 120 * SECOND  #: rows are kept this long as evidence
    keep_rows: int = 4096  #: rows kept as evidence, per table; of queue_lag: keep_polls
    keep_polls: int = 16_384  #: of queue_lag: 64 polls of 256 watched queues, 13 MB at most
    keep_decisions: int = 8192  #: decisions kept as evidence
    pending_rows: int = 50_000  #: rows that wait for evaluation, per table
    subjects: int = 256  #: limiters, queues, brokers and listeners checked for symptoms, of each kind
    keys: int = 4096  #: keys of limiters checked for key_stuck: half that pass, half that are refused
    servers: int = 4096  #: processes with a known listening address
    server_age_ns: int = 600 * SECOND  #: a listening address is kept for this long after its last activity
    max_findings: int = 64  #: findings that are open at once
    evidence_floor_ns: int = 5_000_000  #: shorter calls and handshakes are never evidence


def with_threshold(jump_threshold_ns: int | None) -> CorrelatorConfig:
    """The defaults with ``--jump-threshold``; None is its default."""
    if jump_threshold_ns is None:
        return CorrelatorConfig()
    return CorrelatorConfig(clock_min_ns=jump_threshold_ns, clock_alarm_ns=jump_threshold_ns)


#: For docs/limits.md.
BOUNDS = (
    UpperBound(
        "findings",
        "rows of one table that wait for evaluation",
        CorrelatorConfig.pending_rows,
        "further rows are not used for findings",
        "`status`, `probe_status` row `correlator`, a note of `findings`",
    ),
    UpperBound(
        "findings",
        "limiters, queues, brokers and listeners checked for symptoms",
        CorrelatorConfig.subjects,
        "the others have no findings",
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
