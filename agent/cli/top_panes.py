"""The panes of ``tickscope top``: rows as the verbs have them, as cells with what they are sorted by."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from agent.ask.row_source import RowSource

#: Names of tickscope's own processes begin so.
_OWN = "tickscope"
_KERNEL_EACH_S = 10.0
#: Of the topics of ``clock``, the first ones here.
_FIRST = ("synchronised", "last jump")
Row = dict[str, Any]


class PaneColumn(NamedTuple):
    """least: a column of text may be cut to so many columns; 0: it is never cut. rank: those with the largest are left
    out first where there is no room.
    """

    name: str
    rank: int
    right: bool = False
    least: int = 0


@dataclass(frozen=True)
class Entry:
    """One line of a pane. key: what it is about, the same at each refresh. order: values to sort by, by column; a
    column that is not in it is sorted by its text. below: text that a selected entry shows in full. details: names and
    values. command: what shows more. finding: the row that ``explain`` takes.
    """

    key: str
    cells: dict[str, str]
    style: str = ""
    order: dict[str, Any] = field(default_factory=dict)
    below: str = ""
    details: Sequence[tuple[str, str]] = ()
    command: str = ""
    finding: Row | None = None


class Pane(NamedTuple):
    """tables: those that change it. columns: the first one is called as the pane. read: the entries in their usual
    order, the most urgent first. none: what is said where there is no entry.
    """

    name: str
    tables: tuple[str, ...]
    columns: tuple[PaneColumn, ...]
    read: Callable[[RowSource], list[Entry]]
    none: str


class PaneGroup(NamedTuple):
    """Panes that are read from one source of rows: its tables, and its window, if not that of the command line."""

    tables: tuple[str, ...]
    since: str | None
    panes: tuple[Pane, ...]


def findings(source: RowSource) -> list[Entry]:
    from agent.ask.question import Condition
    from agent.cli.findings import NOT_MERGED, latest, left_open, times
    from agent.common.duration import brief

    out = []
    for row in latest(source, Condition(NOT_MERGED)):
        left = left_open(source, row)
        going, alarm = row["state"] == "open" and not left, row["severity"] == "alarm"
        row = {**row, **times(source, row)}
        sentence = _sentence(source, row)
        out.append(
            Entry(
                row["finding_id"],
                {
                    "findings": "left open" if left else "OPEN" if going else "closed",
                    "began": _when(row["began"], row["start_ns"]),
                    "lasted": brief(row["lasted_s"]),
                    "cause": row["cause"] or "-",
                    "what": f"{row['symptom']} of {row['subject']}",
                    "sentence": sentence,
                },
                ("alarm" if alarm else "warning") if going else "",
                {
                    "findings": (not going, not alarm),
                    "began": -row["start_ns"],
                    "lasted": -row["lasted_s"],
                },
                sentence,
                command=f"tickscope explain {row['finding_id'][:8]}",
                finding=row,
            )
        )
    newest = {row.key: i for i, row in enumerate(out)}
    return sorted(out, key=lambda one: (*one.order["findings"], -newest[one.key]))


def _sentence(source: RowSource, row: Row) -> str:
    """With times of the day, where the full times of ``explain`` would take more room than the words."""
    import numpy as np

    from agent.common.sentence import pieces, text_of

    parts = pieces(json.dumps(row["sentence_parts"] or None), row["sentence"])
    instants = [part for part in parts if isinstance(part, int)]
    walls = source.wall(row["boot_id"], np.array(instants, np.int64)).tolist()
    short = {t_ns: _when(_wall(wall_ns), t_ns) for t_ns, wall_ns in zip(instants, walls, strict=True)}
    return text_of([short[part] if isinstance(part, int) else part for part in parts], lambda t_ns: t_ns)


def _when(began: str | None, start_ns: int) -> str:
    """The local time of the day; with the date if that is not today's."""
    if began is None:
        return f"boot+{start_ns / 1e9:.0f}"
    date, _, of_day = began.partition("T")
    return of_day[:8] if date == time.strftime("%Y-%m-%d") else f"{date[5:]} {of_day[:5]}"


def limiters(source: RowSource) -> list[Entry]:
    from agent.cli.limiters_list import seen_in

    out = []
    for row in seen_in(source):
        refused, used = row["refused_share"] or 0.0, row["limit_use"]
        out.append(
            Entry(
                f"{row['limiter_id']} {row['pid']} {row['proc_start_ns']}",
                {
                    "limiters": row["limiter_id"] or "-",
                    "process": row["program"] or "-",
                    "pid": "-" if row["pid"] is None else str(row["pid"]),
                    "per_s": _number(row["per_s"]),
                    "refused": _share(row["refused_share"]),
                    "used": _share(used),
                    "limit/s": _number(row["limit_per_s"]),
                    "delayed": str(row["delayed"] or "-"),
                    "library": row["library"] or "-",
                    "clock": row["clock"] or "-",
                    "state": "gone" if row["state"] == "gone" else "-",
                },
                "faint" if row["state"] == "gone" else "alarm" if refused >= 0.5 else "warning" if refused else "",
                {
                    "per_s": -(row["per_s"] or 0.0),
                    "refused": -refused,
                    "used": -(used or 0.0),
                    "limit/s": -(row["limit_per_s"] or 0.0),
                    "delayed": -(row["delayed"] or 0),
                },
                details=_all(row),
                command=f"tickscope limiters show {shlex.quote(row['limiter_id'] or '')}",
            )
        )
    return sorted(out, key=lambda one: (one.cells["state"] == "gone", one.order["refused"], one.order["per_s"]))


def queues(source: RowSource) -> list[Entry]:
    from agent.cli import queues_list, queues_text
    from agent.queues.status import severity

    rows = queues_text.summed(queues_list.of_brokers(source))
    out = []
    for row, texts in zip(rows, queues_text.broker_texts(rows), strict=True):
        bad = severity(row["status"])
        style = {"31": "alarm", "33": "warning"}.get(queues_text.status_colour(row["status"] or "-"), "")
        name = row["queue"] or row["cluster"] or row["peer"] or ""
        where = [row["host"], row["system"], row["cluster"], row["queue"], row["consumer_group"]]
        out.append(
            Entry(
                repr(where if row["queue"] else [*where, row["peer"]]),
                {"queues": texts["queue"], **{n: text for n, text in texts.items() if n != "queue"}},
                style,
                {
                    "lag": -(row["length"] or 0),
                    "behind": -(queues_text.behind(row) or 0.0),
                    "drains": -(row["drains_in_s"] or 0.0),
                    "status": -bad,
                },
                row["reason"] or "",
                details=_all(row),
                command=f"tickscope queues show {shlex.quote(name)}",
            )
        )
    for row in queues_list.of_kernel(source):
        if row["length"]:
            full = row["limit"] and (row["length"] or 0) >= row["limit"]
            out.append(
                Entry(
                    f"{row['system']} {row['queue']}",
                    {
                        "queues": row["queue"] or "-",
                        "system": row["system"] or "-",
                        "lag": queues_text.count(row["length"]),
                        "status": "full" if full else "-",
                        "why": f"limit {row['limit']}" if row["limit"] else "",
                    },
                    "alarm" if full else "",
                    {"lag": -(row["length"] or 0), "status": -99 if full else 1},
                    details=_all(row),
                    command="tickscope query socket_queue --since 5m",
                )
            )
    return sorted(out, key=lambda one: (one.order["status"], one.order["lag"]))


class ClocksPane:
    """The kernel's clock, the time daemons, and the last changes, the newest first."""

    def __init__(self) -> None:
        self._read_s = -_KERNEL_EACH_S
        self._kernel: Row = {}

    def __call__(self, source: RowSource) -> list[Entry]:
        from agent.cli import clock, clock_daemons
        from agent.common.host import boot_id

        changes, jump = clock.changes_in(source)
        out: list[Entry] = []
        if source.written_by == "the agent" and source.boots[-1:] == [boot_id()]:
            if time.monotonic() - self._read_s >= _KERNEL_EACH_S:
                self._read_s, self._kernel = time.monotonic(), clock.of_kernel()
            row = {**self._kernel, "last_jump": jump}
            for name, words in clock.words_of(row, {}, clock_daemons.rows(source), changes):
                if name == clock.REAL_MONO:
                    break
                if words.startswith(("unknown", "none announced")):
                    continue
                bad = "alarm" if words.startswith(("NO:", "DISAGREES")) else ""
                out.append(_clock(f"{len(out)}", name, words, bad))
            out.sort(key=lambda one: one.cells["clocks"] not in _FIRST)
        for change in reversed(changes):
            text = clock.change_words(change)
            big = change["kind"] in ("step", "leap") and abs(change["size_ns"] or 0) >= 1_000_000
            when = _when(_wall(change["wall_ns"]), change["t_ns"])
            out.append(_clock(f"{change['t_ns']} {text}", when, text, "warning" if big else "", change))
        return sorted(out, key=lambda one: one.style != "alarm")


def _clock(key: str, name: str, words: str, style: str, row: Row | None = None) -> Entry:
    command = "tickscope clock history" if row else "tickscope clock"
    return Entry(key, {"clocks": name, "reading": words}, style, {}, words, _all(row or {}), command)


def _wall(wall_ns: int | None) -> str | None:
    from agent.columns import NULL_I64
    from agent.common.instants import iso

    return None if wall_ns in (None, NULL_I64) else iso(wall_ns, 0)


def processes(source: RowSource) -> list[Entry]:
    """By the time blocked in system calls, waits for input and timers left out, as a share of the time."""
    from agent.ask.question import GroupValue, Question, Where
    from agent.cli.cells import duration

    blocked = (Where("basis", "=", "blocked"), Where("kind", "=", "slow"), Where("pid", ">", 0))
    values = (
        GroupValue("blocked_ns", "sum", "sum_ns"),
        GroupValue("run_queue_ns", "sum", "run_queue_ns"),
        GroupValue("calls", "sum", "count"),
        GroupValue("longest_ns", "max", "max_ns"),
        GroupValue("interval_ns", "max", "interval_ns"),
        GroupValue("first_ns", "min", "t_ns"),
        GroupValue("last_ns", "max", "t_ns"),
    )
    group = ("pid", "proc_start_ns", "comm", "syscall")
    rows = source.rows(Question("syscall_latency", where=blocked, group=group, values=values, order=("-blocked_ns",)))
    of: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if not (row["comm"] or "").startswith(_OWN):
            of.setdefault((row["pid"], row["proc_start_ns"], row["comm"]), []).append(row)
    first_ns = min((row["first_ns"] - (row["interval_ns"] or 0) for row in rows), default=0)
    whole_ns = max(max((row["last_ns"] for row in rows), default=0) - first_ns, 1_000_000_000)
    out = []
    for (pid, start_ns, comm), calls in of.items():
        worst = max(calls, key=lambda row: row["longest_ns"] or 0)
        share, cpu = (sum(row[name] or 0 for row in calls) / whole_ns for name in ("blocked_ns", "run_queue_ns"))
        count, longest_ns = sum(row["calls"] or 0 for row in calls), worst["longest_ns"] or 0
        out.append(
            Entry(
                f"{pid} {start_ns}",
                {
                    "processes": f"{comm or '?'} {pid}",
                    "blocked": _share(share),
                    "no cpu": _share(cpu),
                    "calls": str(count),
                    "longest": duration(longest_ns),
                    "call": worst["syscall"] or "-",
                    "mostly in": calls[0]["syscall"] or "-",
                },
                "warning" if longest_ns >= 1_000_000_000 else "",
                {"blocked": -share, "no cpu": -cpu, "calls": -count, "longest": -longest_ns},
                details=[
                    (row["syscall"] or "-", f"{_share((row['blocked_ns'] or 0) / whole_ns)} blocked, {_calls(row)}")
                    for row in calls
                ],
                command=f'tickscope query slow_syscall --since 5m --where "pid = {pid}"',
            )
        )
    return sorted(out, key=lambda one: one.order["blocked"])


def _calls(row: Row) -> str:
    from agent.cli.cells import duration

    return f"{row['calls']} calls, longest {duration(row['longest_ns'] or 0)}"


def _number(value: float | None) -> str:
    from agent.common.duration import number

    return "-" if value is None else number(value)


def _share(value: float | None) -> str:
    if value is None:
        return "-"
    return "<0.1%" if 0 < value < 0.0005 else f"{value * 100:.1f}%" if value < 0.9995 else f"{value * 100:.0f}%"


def _all(row: Row) -> list[tuple[str, str]]:
    """Every known column."""
    from agent.cli.cells import cell

    return [(name, cell(name, value)) for name, value in row.items() if value not in (None, "", [])]


def groups() -> tuple[PaneGroup, ...]:
    """The panes in their order on the screen, by what they are read from."""
    from agent.cli import clock

    return (
        PaneGroup(
            tuple(dict.fromkeys(("finding", "verdict", "loss", "probe_status", *clock.TABLES_OF))),
            None,
            (
                Pane(
                    "findings",
                    ("finding",),
                    (
                        PaneColumn("findings", 0),
                        PaneColumn("began", 4),
                        PaneColumn("lasted", 5, right=True),
                        PaneColumn("cause", 2),
                        PaneColumn("what", 3, least=20),
                        PaneColumn("sentence", 6, least=40),
                    ),
                    findings,
                    "no findings",
                ),
                Pane(
                    "clocks",
                    ("clock_change", "clock_daemon"),
                    (PaneColumn("clocks", 0), PaneColumn("reading", 1, least=20)),
                    ClocksPane(),
                    "no change of a clock",
                ),
            ),
        ),
        PaneGroup(
            ("queue_lag", "socket_queue"),
            "5m",
            (
                Pane(
                    "queues",
                    ("queue_lag", "socket_queue"),
                    (
                        PaneColumn("queues", 0, least=20),
                        PaneColumn("system", 6),
                        PaneColumn("cluster", 13, least=16),
                        PaneColumn("lag", 1, right=True),
                        PaneColumn("behind", 3, right=True),
                        PaneColumn("trend", 5),
                        PaneColumn("drains", 4, right=True),
                        PaneColumn("pending", 10, right=True),
                        PaneColumn("in/s", 11, right=True),
                        PaneColumn("out/s", 12, right=True),
                        PaneColumn("status", 2),
                        PaneColumn("why", 8, least=16),
                    ),
                    queues,
                    "no queue of a broker is polled (docs/queues.md)",
                ),
            ),
        ),
        PaneGroup(
            ("limiter", "limiter_decision", "limiter_rate", "syscall_latency"),
            "1m",
            (
                Pane(
                    "limiters",
                    ("limiter_decision", "limiter_rate"),
                    (
                        PaneColumn("limiters", 0, least=20),
                        PaneColumn("process", 4, least=12),
                        PaneColumn("pid", 3, right=True),
                        PaneColumn("per_s", 2, right=True),
                        PaneColumn("refused", 1, right=True),
                        PaneColumn("used", 4, right=True),
                        PaneColumn("limit/s", 5, right=True),
                        PaneColumn("delayed", 6, right=True),
                        PaneColumn("clock", 9),
                        PaneColumn("library", 8, least=12),
                        PaneColumn("state", 7),
                    ),
                    limiters,
                    "no limiter decided anything in the last minute",
                ),
                Pane(
                    "processes",
                    ("syscall_latency",),
                    (
                        PaneColumn("processes", 0, least=23),
                        PaneColumn("blocked", 1, right=True),
                        PaneColumn("no cpu", 4, right=True),
                        PaneColumn("calls", 5, right=True),
                        PaneColumn("longest", 2, right=True),
                        PaneColumn("call", 3),
                        PaneColumn("mostly in", 6),
                    ),
                    processes,
                    "no process was blocked in the last minute",
                ),
            ),
        ),
    )


#: The order of the panes on the screen; their keys are 1 to 5.
ORDER = ("findings", "limiters", "queues", "clocks", "processes")
