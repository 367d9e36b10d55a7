"""Queries of the settings for PostgreSQL, before a server sees them, and slots of a standby."""

from __future__ import annotations

import pytest

from agent.queues.judged import Judged
from agent.queues.postgresql_client import _down
from agent.queues.postgresql_jobs import UnfitQuery, probe
from agent.queues.postgresql_wal import WalReaders
from agent.queues.queue import Row
from agent.tables import TABLES

S = 10**9


@pytest.mark.parametrize(
    "query",
    [
        "SELECT queue, ready FROM jobs -- without pg_advisory_lock(id)",
        "SELECT queue, /* as pg_try_advisory_lock(id)\nhas it */ ready FROM jobs",
        "SELECT queue, ready FROM jobs WHERE note <> 'it''s pg_advisory_lock(1)'",
        r"SELECT queue, ready FROM jobs WHERE note <> E'\'pg_advisory_lock(1)'",
        "SELECT queue, ready FROM jobs WHERE note <> $a$ 'pg_advisory_lock(1) $a$",
    ],
)
def test_a_comment_or_a_text_takes_no_lock(query: str) -> None:
    assert query in probe(query)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT queue, ready FROM jobs WHERE pg_try_advisory_lock(id)",
        'SELECT queue, ready FROM jobs WHERE "pg_try_advisory_lock"(id)',
        "SELECT '--', ready FROM jobs WHERE Pg_Advisory_XAct_Lock(id) IS NOT NULL",
        """SELECT 'a' AS "it's", ready FROM jobs WHERE pg_advisory_lock(id) IS NOT NULL AND note <> ''""",
        "SELECT '/*' || queue, ready FROM jobs WHERE pg_advisory_lock_shared(id) IS NOT NULL AND note <> '*/'",
        "SELECT '\\', pg_advisory_lock(1), 'a'",
    ],
)
def test_a_query_with_advisory_locks_is_refused(query: str) -> None:
    with pytest.raises(UnfitQuery, match="take no locks"):
        probe(query)


def test_a_missing_authority_is_no_missing_certificate_of_the_client() -> None:
    why = "client certificates can only be checked if a root certificate store is available"
    assert str(_down(Exception(f"FATAL:  {why}"))) == why


@pytest.mark.parametrize(("active", "status"), [(0, "stopped"), (None, "ok")])
def test_a_slot_that_a_standby_copies_from_its_primary_needs_no_consumer(active: int | None, status: str) -> None:
    now_ns, readers = [0], WalReaders()

    class Slots:
        name = "postgresql db2:5432/shop"

        def poll(self) -> list[Row]:
            now_ns[0] += S
            at = now_ns[0] // S
            copied = 100 * (at - at % 15)  # as seldom as an idle primary is asked
            slot = ("site", "shop", active, "unreserved", None, copied, copied, "", "", "", None, 1)
            return readers.rows([slot], [], (1, None, 0, 100 * at), (now_ns[0], now_ns[0]))

        def close(self) -> None: ...

    queue = Judged("postgresql", Slots(), lambda: now_ns[0])
    row = [queue.poll()[0] for _ in range(14)][-1]
    assert (row["status"], row["consumers"]) == (status, active)
    copied = "; copied slot" if active is None else ""
    assert row["inexact_reason"] == f"counted in bytes{copied}; wal_status unreserved"
    assert len(row["inexact_reason"]) <= TABLES["queue_lag"].by_name["inexact_reason"].width
