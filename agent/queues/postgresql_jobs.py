"""Job tables of PostgreSQL, by a query of the settings: each row is a queue. Pure.

The query becomes a part of a statement of ours. So it is one SELECT, its number of rows is bounded, and each column is
converted by the server to the type that is expected.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite, isnan
from typing import Any

from agent.queues.age_bounds import stamped_age
from agent.queues.queue import Row
from agent.queues.redis_reading import shown
from agent.queues.timers import QueueTimer

MAX_QUEUES = 1024
_LETTERS = 256
_MOST = (1 << 63) - 1
_LATEST_S = 9e9  # later times do not fit as ns
#: A transaction that only reads may take advisory locks.
_LOCKS = re.compile(r"\bpg_(?:try_)?advisory_(?:xact_)?lock", re.IGNORECASE)
#: Strings and comments, or (group 1) an identifier, in which there may be their signs.
_NO_CODE = re.compile(
    r"""("[^"]*")|\be'(?:[^'\\]|\\.)*'|'[^']*'|\$(\w*)\$.*?\$\2\$|--[^\n]*|/\*.*?\*/""", re.IGNORECASE | re.DOTALL
)

#: Columns that a query may have -> column of ``queue_lag``, or member of a row (agent/queues/judged.py).
TEXTS = {"queue": "destination", "consumer_group": "consumer_group", "holder": "holder"}
COUNTS = {
    "ready": "lag_messages",
    "pending": "pending",
    "delayed": "delayed",
    "redelivered": "redelivered",
    "consumers": "consumers",
    "added": "added",
    "done": "acked",
}
TIMES = {"oldest": "oldest_undelivered_s", "oldest_pending": "oldest_pending_s"}
#: When the first delayed job may run: a timer (agent/queues/timers.py), and no column.
DUE = "next_due"
_NEEDED = ("queue", "ready")
#: 0 if a queue that was there before has no row.
_EMPTY = ("ready", "pending", "delayed", "redelivered")
_WITHIN = "SELECT {} FROM (\n{}\n) AS jobs LIMIT {}"
#: OIDs of types: bigint, smallint, integer, numeric; timestamp with and without time zone.
_NUMERIC = 1700
_WHOLE, _WITH_ZONE, _WITHOUT_ZONE = (20, 21, 23, _NUMERIC), 1184, 1114

#: Queries for the tables of job libraries, by the library's name.
PRESETS = {
    "procrastinate": """
WITH known AS (
    SELECT queue_name, min(id) FILTER (WHERE status = 'doing') AS running,
        count(*) FILTER (WHERE status = 'todo' AND coalesce(scheduled_at, now()) <= now()) AS ready,
        min(id) FILTER (WHERE status = 'todo' AND coalesce(scheduled_at, now()) <= now()) AS waiting,
        count(*) FILTER (WHERE status = 'doing') AS pending,
        count(*) FILTER (WHERE status = 'todo' AND scheduled_at > now()) AS delayed,
        min(scheduled_at) FILTER (WHERE status = 'todo' AND scheduled_at > now()) AS next_due,
        count(*) FILTER (WHERE attempts > 0) AS redelivered
    FROM procrastinate_jobs WHERE status IN ('todo', 'doing') GROUP BY queue_name)
SELECT queue_name AS queue, ready, pending, delayed, redelivered,
    (SELECT max(at) FROM procrastinate_events WHERE job_id = waiting AND at <= now()) AS oldest,
    (SELECT max(at) FROM procrastinate_events WHERE job_id = running AND type = 'started') AS oldest_pending, next_due
FROM known
"""
}


class UnfitQuery(ValueError):
    """The query does not fit; the text is the reason."""


def probe(query: str) -> str:
    """A statement that returns the query's columns, and no row. Raises UnfitQuery."""
    if _LOCKS.search(_NO_CODE.sub(r"\1 ", query)):
        raise UnfitQuery("the query must take no locks: leave out pg_advisory_lock and the like")
    return _WITHIN.format("*", query, 0)


def statement(query: str, columns: Sequence[tuple[str, int]]) -> str:
    """What is asked at each poll, by the columns (name, OID of the type) of ``probe``. Raises UnfitQuery."""
    names = [name for name, _ in columns]
    known, times = (*TEXTS, *COUNTS, *TIMES, DUE), (*TIMES, DUE)
    for name in _NEEDED:
        if name not in names:
            raise UnfitQuery(f"the query has no column {name}")
    for at, (name, type_oid) in enumerate(columns):
        if name not in known:
            raise UnfitQuery(f"the query has an unknown column {name[:40]}; known: {', '.join(known)}")
        if name in names[:at]:
            raise UnfitQuery(f"the query has two columns {name}")
        if name in COUNTS and type_oid not in _WHOLE:
            raise UnfitQuery(f"column {name} is not a whole number")
        if name in times and type_oid == _WITHOUT_ZONE:
            raise UnfitQuery(f"column {name} has no time zone: write it as {name} AT TIME ZONE 'UTC'")
        if name in times and type_oid != _WITH_ZONE:
            raise UnfitQuery(f"column {name} is not a timestamp with time zone")
    wanted = ", ".join(_converted(name, type_oid) for name, type_oid in columns)
    return _WITHIN.format(wanted, query, MAX_QUEUES + 1)


def _converted(name: str, type_oid: int) -> str:
    if name in COUNTS and type_oid == _NUMERIC:
        # A conversion alone would round 2.5 to 3, and refuse the whole answer for NaN.
        it = f"jobs.{name}"
        whole = f"WHEN {it} <= {_MOST} AND {it} = trunc({it}) THEN {it}::bigint"
        return f"CASE WHEN {it} IS NULL THEN NULL WHEN {it} < 0 THEN -1 {whole} ELSE -{_MOST} END AS {name}"
    if name in TEXTS:
        return f"left(jobs.{name}::text, {_LETTERS}) AS {name}"
    if name in COUNTS:
        return f"jobs.{name}::bigint AS {name}"
    if name == DUE:
        return f"extract(epoch FROM jobs.{name})::float8 AS {name}"
    # Not the difference of the times: PostgreSQL before 17 refuses to subtract an infinite one.
    return f"(extract(epoch FROM statement_timestamp()) - extract(epoch FROM jobs.{name}))::float8 AS {name}"


class JobQueues:
    """The queues of one query, and what is kept of them between polls. timers: their delayed jobs, as of the last
    answer.
    """

    def __init__(self) -> None:
        self._before: dict[tuple[object, ...], tuple[dict[str, Any], int]] = {}
        self.timers: list[QueueTimer] = []

    @property
    def known(self) -> list[Row]:
        """What identifies the queues of the last answer."""
        return [{"destination": name, "consumer_group": group} for name, group in self._before]

    def rows(self, names: Sequence[str], answer: Iterable[Sequence[Any]]) -> list[Row]:
        """names: of the columns. Raises UnfitQuery."""
        now: dict[tuple[object, ...], tuple[dict[str, Any], int]] = {}
        out: list[Row] = []
        self.timers = []
        twice: set[tuple[object, ...]] = set()
        for number, values in enumerate(answer):
            found = dict(zip(names, values, strict=True))
            if number == MAX_QUEUES:
                out.append({"reason": f"more than {MAX_QUEUES} queues are not watched: choose in the query"})
                break
            if not found["queue"]:
                out.append({"reason": "a row without a queue is not watched: give it a name, as by coalesce"})
                continue
            row = self._row(found, now)
            if row is None:
                twice.add(_key(found))
            else:
                out.append(row)
        for key in twice:
            its = {"destination": key[0], "consumer_group": key[1]}
            why = {"status": "unknown", "reason": "the query has several rows of this queue", "failure": "other"}
            out = [{**its, **why} if (one.get("destination"), one.get("consumer_group")) == key else one for one in out]
        empty = {**dict.fromkeys(names), **{name: 0 for name in _EMPTY if name in names}}
        # A query by groups has no row for a queue without jobs.
        without = [key for key in self._before if key not in now][: MAX_QUEUES - len(now)]
        out += [row for key in without if (row := self._row({**empty, "key": key}, now)) is not None]
        self._before = now
        return out

    def _row(self, found: dict[str, Any], now: dict[tuple[object, ...], tuple[dict[str, Any], int]]) -> Row | None:
        """None if there is already a row of that queue."""
        row: dict[str, Any] = {TEXTS[name]: shown(found[name].encode()) for name in TEXTS if found.get(name)}
        if "key" in found:
            row["destination"], row["consumer_group"] = found.pop("key")
        key = row["destination"], row.get("consumer_group")
        if key in now:
            return None
        problems = []
        for name, column in COUNTS.items():
            count = found.get(name)
            if count is not None and not 0 <= count <= _MOST:
                problems.append(f"{name} is {'no whole number' if count == -_MOST else 'negative'}")
                count = found[name] = None
            row[column] = count
        for name, column in TIMES.items():
            age = found.get(name)
            if age is not None:
                known = isfinite(age) and not isnan(stamped_age(age))
                if not known:
                    problems.append(f"{name} is in the future" if isfinite(age) else f"{name} is infinite")
                age = stamped_age(age) if known else None
            row[column] = age
        row["lag_messages"] = found["ready"]
        row["exact"] = found["ready"] is not None
        if found["ready"] == 0:
            row["lag_s"] = 0.0
        elif row["oldest_undelivered_s"] is not None:
            row["lag_s"] = row["oldest_undelivered_s"]
        last, reads = self._before.get(key, (None, 0))
        if last is not None and _was_read(last, found):
            reads += 1
        now[key] = found, reads
        if row.get("delayed"):
            self.timers.append(_delayed(row["destination"], row["delayed"], found.get(DUE), DUE in found))
        if found.get("oldest") is not None or found.get("done") is not None:
            row["position"] = reads
        if problems:
            row["inexact_reason"] = ", ".join(problems)
        elif found["ready"] is None:
            row["inexact_reason"] = "ready is NULL"
        return row


def _key(found: Mapping[str, Any]) -> tuple[object, ...]:
    group = found.get("consumer_group")
    return shown(found["queue"].encode()), shown(group.encode()) if group else None


def _delayed(queue: bytes, jobs: int, due_s: float | None, asked: bool) -> QueueTimer:
    """Delayed jobs of a queue. due_s: of the first, since 1970. asked: whether the query has that column."""
    if due_s is not None and 0 <= due_s < _LATEST_S:
        return QueueTimer(queue, b"", "eta", due_wall_ns=round(due_s * 1e6) * 1000, timers=jobs)
    why = f"{DUE} is NULL or out of range" if asked else f"the query has no column {DUE}"
    return QueueTimer(queue, b"", "eta", timers=jobs, unknown=f"when is not known: {why}")


def _was_read(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether a job was taken between two polls: fewer are ready, the oldest is another one, or others run or are
    done. An age grows by the time between the polls if its job is the same.
    """
    if any(before.get(name) != now.get(name) for name in ("pending", "done", "holder")):
        return True
    if (now.get("ready") or 0) < (before.get("ready") or 0):
        return True
    was, is_now = before.get("oldest"), now.get("oldest")
    return was is None or is_now is None or is_now < was
