"""Queries of the settings for PostgreSQL, before a server sees them."""

from __future__ import annotations

import pytest

from agent.queues.postgresql_client import _down
from agent.queues.postgresql_jobs import UnfitQuery, probe


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
