"""Findings and their evidence."""

from __future__ import annotations

from agent.columns import enum, f64, i64, json_text, text
from agent.tables.names import CAUSES, SYMPTOMS
from agent.tables.shared import table

DECLARED = (
    table(
        "finding",
        "a finding, its latest state",
        text("finding_id", 32, "its id", "tickscope.finding.id"),
        enum("state", "open closed", "still going on?"),
        enum(
            "severity",
            "notice alarm",
            "notice: a clock jump below the threshold (--jump-threshold) with no symptom after it",
        ),
        i64("start_ns", "first seen, CLOCK_BOOTTIME", "ns"),
        i64("end_ns", "last seen, CLOCK_BOOTTIME", "ns"),
        text("symptom", 24, "what was wrong", names=SYMPTOMS),
        text("subject", 128, "with what"),
        text("cause", 24, "the first cause", names=CAUSES),
        text(
            "cause_detail",
            24,
            "the finer word of the first cause: of syscall the call, of cpu preempted, throttled or steal ...",
        ),
        i64("culprit_pid", "the process that did it, where that is known"),
        text("culprit_comm", 16, "its command name"),
        text(
            "culprit_object",
            128,
            "what did it, where that is no process, or not only: a server's ip:port, a consumer, a device, a cgroup",
        ),
        f64("confidence", "0 to 1"),
        text(
            "sentence",
            480,
            "the finding in words, times in UTC; boot+SECONDS where nothing was known of the wall clock yet",
        ),
        json_text(
            "said",
            1024,
            "the same in pieces: texts, instants (CLOCK_BOOTTIME ns) and values ([value, unit]), which whoever shows it"
            " puts into words, by the clock of who reads it",
        ),
        json_text("causes", 2048, "ranked causes"),
        json_text("evidence", 6144, "what speaks for it"),
        json_text("ruled_out", 2048, "what was looked at and does not explain it"),
        measure="confidence",
        latest_by="finding_id",
    ),
    table(
        "evidence",
        "a piece of evidence of a finding, its latest state",
        text("finding_id", 32, "of which finding", "tickscope.finding.id"),
        text("evidence_id", 16, "its id"),
        enum(
            "role",
            "for against timeline withdrawn",
            "what speaks for a cause, or against it, or what happened when; withdrawn: no longer so",
        ),
        text(
            "cause",
            24,
            "the cause that it speaks for or against; of a time line, empty where it is the symptom",
            names=CAUSES,
        ),
        text("table", 24, "the table that it was seen in (a word of SQL: quote it there)"),
        text("column", 24, "the column (quote it, too); empty where rows were counted"),
        text("what", 48, "what the value is"),
        f64("value", "in its unit"),
        text("unit", 16, "of value and baseline"),
        f64("baseline", "what was usual"),
        i64("start_ns", "when, or from when, CLOCK_BOOTTIME", "ns"),
        i64("end_ns", "until when, CLOCK_BOOTTIME", "ns"),
        i64("pid", "of which process", "", "process.pid"),
        text("object", 128, "of which limiter, queue, peer or process"),
        measure="value",
        latest_by="evidence_id",
    ),
)
