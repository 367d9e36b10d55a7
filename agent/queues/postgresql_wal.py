"""Replication slots, standbys and the replay of a standby: how far each is behind the write-ahead log (WAL). Pure.

What waits is counted in bytes, and a byte is no message, so ``lag_messages`` is null. ``lag_s`` comes from our own
history of the end of the log (agent/queues/end_offsets.py). The server's own lags (``flush_lag``, ``replay_lag``) are
of no use: of an idle slot they grow and then turn null.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from typing import Any

from agent.queues.commits import Commits
from agent.queues.end_offsets import EndOffsets
from agent.queues.queue import Row
from agent.queues.redis_reading import shown

MAX_SLOTS = 256
_GONE_NS = 60_000_000_000  # a dropped slot is shown for this long

#: Positions come before the end of the log, so that no lag is negative. ``to_jsonb``: for columns of newer versions.
#: The last column is the number of all of them. The name of a reader is visible to each role, the address is not: its
#: port is -1 for a socket, NULL if it is hidden. Of a slot that a standby copies from its primary (17) nobody reads the
#: copy: whether it is active is NULL.
SLOTS = """
SELECT s.slot_name::text, coalesce(s.database::text, ''),
    CASE WHEN pg_is_in_recovery() AND to_jsonb(s) ->> 'synced' = 'true' THEN NULL ELSE s.active::int END,
    coalesce(s.wal_status, ''), s.safe_wal_size,
    pg_wal_lsn_diff(CASE s.slot_type WHEN 'logical' THEN s.confirmed_flush_lsn ELSE s.restart_lsn END, '0/0')::bigint,
    pg_wal_lsn_diff(s.restart_lsn, '0/0')::bigint,
    coalesce(
        to_jsonb(s) ->> 'invalidation_reason',
        CASE to_jsonb(s) ->> 'conflicting' WHEN 'true' THEN 'conflicting' END, -- 16, which has no reason
        ''
    ),
    coalesce(r.application_name, ''), coalesce(host(r.client_addr), CASE r.client_port WHEN -1 THEN 'socket' END, ''),
    extract(epoch FROM statement_timestamp() - r.reply_time)::float8, count(*) OVER ()
FROM pg_replication_slots AS s LEFT JOIN pg_stat_replication AS r ON r.pid = s.active_pid
ORDER BY 1 LIMIT 256
"""
#: Physical standbys with what they have replayed; the slowest of those with one name.
STANDBYS = """
SELECT r.application_name, min(coalesce(host(r.client_addr), 'socket')), count(*) FILTER (WHERE r.state IS NULL),
    min(pg_wal_lsn_diff(coalesce(r.replay_lsn, r.flush_lsn, r.write_lsn), '0/0'))::bigint,
    extract(epoch FROM statement_timestamp() - min(r.reply_time))::float8, count(*) OVER ()
FROM pg_stat_replication AS r LEFT JOIN pg_replication_slots AS s ON s.active_pid = r.pid
WHERE coalesce(s.slot_type, 'physical') = 'physical' AND (r.state IS NULL OR r.state IN ('streaming', 'catchup'))
GROUP BY 1 ORDER BY 1 LIMIT 256
"""
#: Whether it is a standby, what it has replayed, whether replay is paused; the end of the log.
END = """
SELECT pg_is_in_recovery()::int, pg_wal_lsn_diff(pg_last_wal_replay_lsn(), '0/0')::bigint,
    CASE WHEN pg_is_in_recovery() THEN pg_is_wal_replay_paused()::int ELSE 0 END,
    pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN greatest(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn())
        ELSE pg_current_wal_lsn() END, '0/0')::bigint
"""
#: Why a slot was lost, where the server's word is not enough.
_REMOVED = "WAL that it needs was removed (max_slot_wal_keep_size)"
_LOST = {
    "": _REMOVED,
    "wal_removed": _REMOVED,
    "conflicting": "conflict with recovery (hot_standby_feedback, wal_level)",
}
Key = tuple[bytes, bytes]  #: destination, consumer group
_WAL = b"wal"
_REPLAY = _WAL, b"replay"  # of a standby: it ends when the standby becomes the primary


@dataclass
class _Kept:
    """Of one reader between polls."""

    commits: Commits
    seen_ns: int


class WalReaders:
    """The readers of one server's log."""

    def __init__(self) -> None:
        self._history = EndOffsets()
        self._kept: dict[Key, _Kept] = {}
        self._rows: list[Row] = []
        self.role: str | None = None  # primary or replica, as of the last answer

    @property
    def known(self) -> list[Row]:
        """What identifies the readers of the last answer."""
        return [_named(key) for key in self._kept]

    def rows(
        self,
        slots: Sequence[tuple[Any, ...]],
        standbys: Sequence[tuple[Any, ...]],
        end: tuple[Any, ...],
        t_ns: tuple[int, int],
    ) -> list[Row]:
        """The answers of ``SLOTS``, ``STANDBYS`` and ``END``, asked in this order. t_ns: before and after ``END``."""
        self._rows = []
        in_recovery, replayed, paused, end_at = end
        now_ns = sum(t_ns) // 2
        self.role = "replica" if in_recovery else "primary"
        if end_at is None:
            return [{"reason": "the end of the log is unknown"}]
        self._history.add(now_ns, end_at)
        for found, what in ((slots, "replication slots"), (standbys, "standbys")):
            if found and (more := found[0][-1] - len(found)) > 0:
                self._rows.append({"reason": f"{more} {what} more than {MAX_SLOTS} are not watched"})
        for slot in slots:
            self._slot(slot[:-1], end_at, now_ns)
        hidden = 0
        for name, address, unseen, position, reply_s, _ in standbys:
            hidden += unseen
            if position is not None and not unseen:
                row = self._row((_WAL, shown(f"{name} (replay)".encode())), position, end_at, now_ns, consumers=1)
                row["added"] = None  # the slowest of several may be another one now: that it is behind is no step back
                self._rows.append({**row, "holder": _holder(name, address), "asked_s": _asked(reply_s)})
        if hidden:
            self._rows.append({"reason": "standbys are hidden: GRANT pg_read_all_stats (or pg_monitor) to this role"})
        if in_recovery and replayed is not None:
            row = self._row(_REPLAY, replayed, end_at, now_ns, consumers=0 if paused else 1)
            note = {"inexact_reason": f"{row['inexact_reason']}; replay is paused"} if paused else {}
            self._rows.append({**row, **note})
        self._dropped(now_ns, bool(slots) and slots[0][-1] > len(slots))
        return self._rows

    def _slot(self, slot: tuple[Any, ...], end_at: int, now_ns: int) -> None:
        name, database, active, wal_status, safe_bytes, position, restart, invalid, application, address, reply_s = slot
        key = shown(database.encode()) or _WAL, shown(name.encode())
        if wal_status == "lost" or invalid:
            reason = f"slot is lost: {_LOST.get(invalid, invalid)}: drop it, and set its consumer up anew"
            self._kept[key] = _Kept(Commits(), now_ns)
            self._rows.append({**_named(key), "status": "gone", "reason": reason, "consumers": 0})
            return
        if position is None:
            self._kept[key] = _Kept(Commits(), now_ns)
            self._rows.append(
                {**_named(key), "consumers": active, "reason": "slot has reserved no WAL yet: never used"}
            )
            return
        row = self._row(key, position, end_at, now_ns, consumers=active)
        if active is None:
            row["inexact_reason"] += "; copied slot"  # with wal_status at most 64 characters
        if wal_status != "reserved":
            row["inexact_reason"] = f"{row['inexact_reason']}; wal_status {wal_status}"
        if safe_bytes is not None and restart is not None:
            used = max(0, end_at - restart)
            row["room"] = used, used + max(0, safe_bytes), "slot is lost"
        row["asked_s"] = _asked(reply_s)
        if active and (application or address):
            row["holder"] = _holder(application, address)
        self._rows.append(row)

    def _row(self, key: Key, position: int, end_at: int, now_ns: int, consumers: int | None) -> dict[str, Any]:
        kept = self._kept.setdefault(key, _Kept(Commits(), now_ns))
        kept.seen_ns = now_ns
        behind = end_at - position
        row: dict[str, Any] = {**_named(key), "consumers": consumers}
        if behind < 0:  # on a standby that has lost its place, or after pg_resetwal
            return {**row, "inexact_reason": f"it is {-behind} bytes ahead of the log"}
        if behind >= 1 << 63:
            return {**row, "inexact_reason": f"it is {behind} bytes behind, which cannot be"}
        age = None if behind == 0 else self._history.age(position, now_ns)
        if behind == 0:
            row |= {"lag_s": 0.0, "lag_error_s": 0.0}
        elif age is not None:
            row |= {"lag_s": max(0.0, age.age_s), "lag_error_s": age.error_s, "lag_basis": "history"}
        return row | {
            "lag_bytes": behind,
            "inexact_reason": "counted in bytes",
            "oldest_undelivered_s": row.get("lag_s", nan) if behind else nan,
            "added": end_at,
            "acked": position,
            "position": kept.commits.position(position, behind, consumers != 0, now_ns),
        }

    def _dropped(self, now_ns: int, more: bool) -> None:
        """Rows of the slots that are no longer there, for a minute. more: some that are there were not read."""
        for key, kept in list(self._kept.items()):
            if kept.seen_ns == now_ns:
                continue
            if more or now_ns - kept.seen_ns > _GONE_NS or key == _REPLAY or key[1].endswith(b" (replay)"):
                del self._kept[key]
                continue
            ago_s = (now_ns - kept.seen_ns) / 1e9
            self._rows.append({**_named(key), "status": "gone", "reason": f"slot was dropped; {ago_s:.0f} s ago"})


def _named(key: Key) -> Row:
    return {"destination": key[0], "consumer_group": key[1]}


def _holder(application: str, address: str) -> bytes:
    return shown((f"{application}@{address}" if address else application).encode())


def _asked(reply_s: float | None) -> float | None:
    return None if reply_s is None else max(0.0, reply_s)
