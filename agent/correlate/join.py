"""What happened inside a decision: an interval join, pure and vectorised."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from agent.correlate.limiters import at_work
from agent.correlate.rows import groups, known, start_ticks

_INSIDE = ("slow_syscall", "tls_handshake")
_RTT_REACH_NS = 60_000_000_000


def within(
    key: np.ndarray, t_ns: np.ndarray, of_key: np.ndarray, from_ns: np.ndarray, to_ns: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Pairs (interval, event) of equal key with ``from_ns <= t_ns <= to_ns``; all keys are small non-negative integers.

    key, t_ns: shape (events,); of_key, from_ns, to_ns: shape (intervals,). Pairs are in order of interval, then time.
    """
    times, rank = np.unique(t_ns, return_inverse=True)
    base = len(times) + 1
    place = key * base + rank.reshape(-1)
    order = np.argsort(place, kind="stable")
    place = place[order]
    lo = np.searchsorted(place, of_key * base + np.searchsorted(times, from_ns, "left"), "left")
    hi = np.searchsorted(place, of_key * base + np.searchsorted(times, to_ns, "right"), "left")
    count = np.maximum(hi - lo, 0)
    interval = np.repeat(np.arange(len(of_key)), count)
    offset = np.arange(len(interval)) - np.repeat(np.cumsum(count) - count, count)
    return interval, order[np.repeat(lo, count) + offset]


def _pairs(
    d: np.ndarray, d_by: list[np.ndarray], e: np.ndarray, e_by: list[np.ndarray], di: np.ndarray, ei: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Pairs among the chosen decisions ``di`` and events ``ei`` that agree in every ``by`` column."""
    if not len(di) or not len(ei):
        return di[:0], ei[:0]
    _, number = groups([np.concatenate([a[di], b[ei]]) for a, b in zip(d_by, e_by, strict=True)])
    i, j = within(number[len(di) :], e["t_ns"][ei], number[: len(di)], *at_work(d[di]))
    return di[i], ei[j]


def inside(decisions: np.ndarray, events: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Index pairs (decision, event) of events that ended within ``at_work`` of their own decision.

    An event belongs to a decision of the same process and goroutine if both are known, else of the same thread. A
    decision with an unknown thread takes the events of its process (the intake socket gives only the process). An event
    with an unknown thread belongs to any decision of its process (a Go lookup runs on a goroutine of its own).
    """
    proc_d = [decisions["pid"], start_ticks(decisions)]
    proc_e = [events["pid"], start_ticks(events)]
    go_d = known(decisions["goroutine"])
    go_e = known(events["goroutine"]) if "goroutine" in (events.dtype.names or ()) else np.zeros(len(events), np.bool_)
    timed = known(decisions["duration_ns"])
    thread_d = known(decisions["tid"])
    some, all_e = np.flatnonzero, np.arange(len(events))
    by_thread, by_goroutine = [*proc_d, decisions["tid"]], [*proc_d, decisions["goroutine"]]
    threads = [*proc_e, events["tid"]]
    parts = [
        _pairs(decisions, by_thread, events, threads, some(timed & thread_d & ~go_d), all_e),
        _pairs(decisions, by_thread, events, threads, some(timed & thread_d & go_d), some(~go_e)),
        _pairs(decisions, proc_d, events, proc_e, some(timed & ~thread_d & ~go_d), all_e),
    ]
    without_thread = some(~known(events["tid"]) & ~go_e)
    if len(without_thread):
        parts.append(_pairs(decisions, proc_d, events, proc_e, some(timed & (thread_d | go_d)), without_thread))
    if go_e.any():
        parts.append(
            _pairs(decisions, by_goroutine, events, [*proc_e, events["goroutine"]], some(timed & go_d), some(go_e))
        )
    i, j = np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])
    order = np.lexsort((j, i))
    return i[order], j[order]


def _nearest(of_key: np.ndarray, t_ns: np.ndarray, key: np.ndarray, at_ns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Index pairs (wanted, event): of an equal key, the first event at or after t_ns, else the last before it, within
    reach.
    """
    if not len(of_key) or not len(key):
        nothing = np.empty(0, np.int64)
        return nothing, nothing
    times, rank = np.unique(at_ns, return_inverse=True)
    base = len(times) + 1
    place = key * base + rank.reshape(-1)
    order = np.argsort(place, kind="stable")
    after = np.searchsorted(place[order], of_key * base + np.searchsorted(times, t_ns, "left"), "left")
    best = np.full(len(of_key), -1)
    for candidate in (after - 1, after):
        event = order[np.clip(candidate, 0, len(order) - 1)]
        right = (
            (candidate >= 0)
            & (candidate < len(order))
            & (key[event] == of_key)
            & (np.abs(at_ns[event] - t_ns) <= _RTT_REACH_NS)
        )
        best = np.where(right, event, best)
    wanted = np.flatnonzero(best >= 0)
    return wanted, best[wanted]


def children(decisions_rows: np.ndarray, tables: Mapping[str, np.ndarray]) -> list[tuple[int, str, int]]:
    """Children of decisions: ``(decision index, table, row index)``, ordered by decision, then table.

    tables: rows of ``slow_syscall``, ``tls_handshake`` and ``tcp_rtt`` (any may be missing). Slow calls, waits and
    handshakes are those that ended inside the decision (see ``inside``). An RTT row belongs to a socket that they used
    (by sock_id, else by process and peer); it is the one that covers the decision's end or is nearest to it, at most a
    minute away.
    """
    found: list[tuple[int, str, int]] = []
    rtt = tables.get("tcp_rtt")
    for table in _INSIDE:
        rows = tables.get(table)
        if rows is None or not len(rows) or not len(decisions_rows):
            continue
        i, j = inside(decisions_rows, rows)
        found += [(int(a), table, int(b)) for a, b in zip(i, j, strict=True)]
        if rtt is not None and len(rtt) and len(i):
            found += [
                (int(i[a]), "tcp_rtt", int(b))
                for a, b in zip(*_rtt_of(decisions_rows["t_ns"][i], rows[j], rtt), strict=True)
            ]
    return sorted(set(found))


def _rtt_of(t_ns: np.ndarray, used: np.ndarray, rtt: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Index pairs (used, rtt): by socket if it is known on both sides and found, else by process and peer."""
    has = known(used["sock_id"])
    rows = np.flatnonzero(known(rtt["sock_id"]))
    want = np.flatnonzero(has)
    _, number = groups([np.concatenate([used["sock_id"][want], rtt["sock_id"][rows]])])
    a, b = _nearest(number[: len(want)], t_ns[want], number[len(want) :], rtt["t_ns"][rows])
    by_sock = want[a], rows[b]
    rest = np.setdiff1d(np.flatnonzero(used["peer"] != np.zeros(1, used["peer"].dtype)), by_sock[0])
    _, number = groups([np.concatenate([used[c][rest], rtt[c]]) for c in ("pid", "peer")])
    c, d = _nearest(number[: len(rest)], t_ns[rest], number[len(rest) :], rtt["t_ns"])
    return np.concatenate([by_sock[0], rest[c]]), np.concatenate([by_sock[1], d])
