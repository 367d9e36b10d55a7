"""Reads the on-demand profiles (agent/investigate/) of a finding, and formats them for ``tickscope explain``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent.ask.question import Where
    from agent.ask.row_source import RowSource

#: Tables of profiles, in the order of display.
TABLES_OF = ("on_cpu", "off_cpu", "block_io", "lock_contention", "memory_stall", "syn_ack", "syscall_latency")
#: The number of shown profiles per finding, entries per table, processes per disk, functions per stack.
_PROFILES, _ENTRIES, _REQUESTERS, _FRAMES = 3, 4, 3, 12
#: A profile begins at most this long after its episode.
_AFTER_NS = 5_000_000_000
#: Tables with rows that belong to no process.
_SHARED = ("block_io", "syn_ack")
Wrap = Callable[[str, str, int], list[str]]


def read(source: RowSource, finding: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The finding's profiles in order of time, each with its rows by table."""
    from agent.ask.question import Question, Where

    boot = Where("boot_id", "=", finding["boot_id"])
    profiles = _of(source, finding, Where("finding_id", "=", finding["finding_id"]), boot)
    pids = tuple({e["keys"]["pid"] for e in finding["evidence"] if isinstance(e.get("keys", {}).get("pid"), int)})
    if not profiles and pids:  # the profile was for another problem of the same process
        profiles = _of(source, finding, Where("pid", "in", pids), boot)
    seen: set[str] = set()
    for profile in profiles:
        whole = profile["investigation"].partition(".")[0]
        for table in TABLES_OF:
            shared = table in _SHARED
            mark = (
                Where("investigation", "starts", whole + ".")
                if shared
                else Where("investigation", "=", profile["investigation"])
            )
            profile[table] = [] if shared and whole in seen else source.rows(Question(table, where=(mark, boot)))
        seen.add(whole)
    return profiles


def _of(source: RowSource, finding: Mapping[str, Any], which: Where, boot: Where) -> list[dict[str, Any]]:
    """The first profiles within the finding's time."""
    from agent.ask.question import Question

    profiles = source.rows(Question("investigation", where=(which, boot), latest=("investigation",)))
    after = [
        profile
        for profile in profiles
        if profile["begun_ns"] <= finding["end_ns"] + _AFTER_NS and profile["t_ns"] >= finding["start_ns"]
    ]
    return sorted(after, key=lambda profile: profile["begun_ns"])[:_PROFILES]


def lines_of(profiles: Sequence[Mapping[str, Any]], start_ns: int, wrap: Wrap) -> list[str]:
    """Lines of text; wrap: (text, indent, further lines' indent) -> lines."""
    from agent.cli.cells import duration

    lines: list[str] = []
    for profile in profiles:
        subject = f"{profile['comm']} pid {profile['pid']}"
        took = duration(profile["interval_ns"] or 0)
        begun = profile["begun_ns"] - start_ns
        after = f"{'-' if begun < 0 else '+'}{duration(abs(begun))}"
        state = "" if profile["state"] == "done" else f", {profile['state']}"
        why = f"; {profile['reason']}" if profile["reason"] else ""
        lines += ["", *wrap(f"On-demand profile of {subject}, for {took} from {after} on{state}{why}", "", 2)]
        for table, lines_of_table in _LINES_OF.items():
            for text, hang in lines_of_table(profile.get(table) or []):
                lines += wrap(text, " " * hang, hang + 2)
    return lines


Lines = Iterator[tuple[str, int]]


def _on_cpu(rows: Sequence[Mapping[str, Any]]) -> Lines:
    """Threads that ran for more than a tenth of the time."""
    from agent.cli.cells import duration

    for row in [row for row in rows if row["sum_ns"] >= 0.1 * (row["interval_ns"] or 0)][:_ENTRIES]:
        call = f" in {row['syscall']}" if row["syscall"] else ""
        yield (
            (
                f"{row['comm']} thread {row['tid']}: ran for {duration(row['sum_ns'])} of"
                f" {duration(row['interval_ns'])}{call}"
            ),
            2,
        )
        if row["user_stack"]:
            yield f"{'program':<8}{_stack(row['user_stack'])}", 4


def _off_cpu(rows: Sequence[Mapping[str, Any]]) -> Lines:
    from agent.cli.cells import duration

    held = [row for row in rows if row["kind"] == "slow" and row["state"] != "ready"]
    for row in (held or list(rows))[:_ENTRIES]:
        state = {"uninterruptible": "asleep, uninterruptible", "sleeping": "asleep"}.get(
            row["state"], "ready to run, but not running"
        )
        call = f" in {row['syscall']}" if row["syscall"] else ""
        times = _times(row["count"], "time")
        yield f"{row['comm']}: {duration(row['sum_ns'])} {state}{call}, {times}, for up to {duration(row['max_ns'])}", 2
        for name, column in (("kernel", "kernel_stack"), ("program", "user_stack")):
            if row[column]:
                yield f"{name:<8}{_stack(row[column])}", 4


def _stack(text: str) -> str:
    frames = text.split(";")
    more = f" < {len(frames) - _FRAMES} more" if len(frames) > _FRAMES else ""
    return " < ".join(frames[:_FRAMES]) + more


def _block_io(rows: Sequence[Mapping[str, Any]]) -> Lines:
    """The disks with the slowest requests first, with the processes that requested most."""
    from agent.cli.cells import duration

    disks = sorted((row for row in rows if row["op"] == "all"), key=lambda row: -row["max_ns"])
    for disk in disks[:_ENTRIES]:
        failed = f", {disk['errors']} failed" if disk["errors"] else ""
        n = max(1, disk["count"] + (disk["unfinished"] or 0))
        still = f", {disk['unfinished']} not finished" if disk["unfinished"] else ""
        took = f"it took {duration(disk['sum_ns'] / n)} for each, {duration(disk['max_ns'])} for the slowest"
        queue = f"after {duration(disk['queued_ns'] / n)} in the queue"
        yield (
            (
                f"disk {disk['device']}: {_times(disk['count'], 'request')}{failed}{still}, {_size(disk['bytes'])};"
                f" {took}, {queue}"
            ),
            2,
        )
        its = [row for row in rows if row["device"] == disk["device"] and row["op"] != "all" and row["bytes"]]
        for row in sorted(its, key=lambda row: -row["bytes"])[:_REQUESTERS]:
            yield (
                (
                    f"{row['op']} by {row['comm']} pid {row['pid']}: {_times(row['count'], 'request')},"
                    f" {_size(row['bytes'])}"
                ),
                4,
            )


def _times(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def _size(n: int) -> str:
    return f"{n / 1e6:.1f} MB" if n >= 100_000 else f"{n / 1e3:.0f} kB"


def _locks(rows: Sequence[Mapping[str, Any]]) -> Lines:
    from agent.cli.cells import duration

    for row in [row for row in rows if row["sum_ns"] >= 1_000_000][:_ENTRIES]:
        path = "answering a SYN" if row["path"] == "handshake" else row["comm"]
        yield (
            (
                f"{path}: {duration(row['sum_ns'])} waiting for a lock of the kernel's, {row['lock']} ({row['kind']}),"
                f" {_times(row['count'], 'time')}, for up to {duration(row['max_ns'])}"
            ),
            2,
        )
        if row["kernel_stack"]:
            yield f"{'kernel':<8}{_stack(row['kernel_stack'])}", 4


def _memory(rows: Sequence[Mapping[str, Any]]) -> Lines:
    from agent.cli.cells import duration

    for row in rows[:_ENTRIES]:
        what = "to free pages" if row["kind"] == "reclaim" else "to make room for large pages"
        yield (
            (
                f"{row['comm']}: {duration(row['sum_ns'])} {what} itself, {_times(row['count'], 'time')}, for up to"
                f" {duration(row['max_ns'])}"
            ),
            2,
        )


def _syn_ack(rows: Sequence[Mapping[str, Any]]) -> Lines:
    from agent.cli.cells import duration

    for row in sorted(rows, key=lambda row: -row["max_ns"])[:_ENTRIES]:
        yield (
            (
                f"port {row['sport']}: {_times(row['count'], 'SYN')} answered,"
                f" {duration(row['sum_ns'] / max(1, row['count']))} each, {duration(row['max_ns'])} the slowest"
            ),
            2,
        )


def _calls(rows: Sequence[Mapping[str, Any]]) -> Lines:
    from agent.cli.cells import duration

    for row in rows[:_ENTRIES]:
        failed = f", {row['errors']} failed" if row["errors"] else ""
        yield (
            (
                f"{row['comm']}: {_times(row['count'], 'call')} of {row['syscall']}{failed}, {duration(row['sum_ns'])}"
                f" in all, up to {duration(row['max_ns'])}"
            ),
            2,
        )


_LINES_OF: Mapping[str, Callable[[Sequence[Mapping[str, Any]]], Lines]] = {
    "on_cpu": _on_cpu,
    "off_cpu": _off_cpu,
    "block_io": _block_io,
    "lock_contention": _locks,
    "memory_stall": _memory,
    "syn_ack": _syn_ack,
    "syscall_latency": _calls,
}
