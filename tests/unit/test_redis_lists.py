"""Queues in lists of a Redis server, where something cannot be read."""

from __future__ import annotations

from typing import Any

import hiredis
import pytest

from agent.queues.redis_lists import ListQueues

NOW_S = 1_700_000_000


def rq_row(*refused: str, now_s: int = NOW_S, queued: bytes = b"%d" % (NOW_S - 40), waiting: int = 1) -> Any:
    """The row of a queue of RQ with a due job, and one for later. refused: commands, by the ACL."""
    replies: dict[str, Any] = {
        "LLEN": waiting,
        "ZCARD": 0,
        "SCARD": 1,
        "ZCOUNT": 1,
        "LINDEX": b"job" if waiting else None,
        "HGET": queued,
    }

    def ask(commands: Any) -> list[Any]:
        found = {**replies, "ZRANGE": []}
        scheduled: dict[str, Any] = {"ZRANGE": [b"due", b"%d" % (NOW_S - 20)]}
        no = hiredis.ReplyError("NOPERM User mon has no permissions to run the command")
        its = [found | (scheduled if "scheduled" in str(command[1]) else {}) for command in commands]
        return [no if command[0] in refused else one[command[0]] for command, one in zip(commands, its, strict=True)]

    (row,) = ListQueues([("rq", "mails")]).rows(ask, now_s)
    return row


def test_due_jobs_of_rq_are_lag() -> None:
    row = rq_row()
    assert (row["lag_messages"], row["delayed"], row["exact"]) == (2, 1, True)
    assert row["oldest_undelivered_s"] == 40


@pytest.mark.parametrize(("refused", "now_s", "age_s"), [(["ZCOUNT"], NOW_S, 40), ([], 0, None)])
def test_without_rights_for_due_jobs_the_lag_of_rq_is_a_lower_bound(
    refused: list[str], now_s: int, age_s: int | None
) -> None:
    row = rq_row(*refused, now_s=now_s)
    assert (row["lag_messages"], row["delayed"], row["exact"]) == (1, None, False)
    assert row["inexact_reason"] == "lower bound: due jobs are not known"
    age = row["oldest_undelivered_s"]
    assert (age if age == age else None) == age_s
    empty = rq_row(*refused, now_s=now_s, waiting=0)
    assert empty["lag_messages"] == 0 and empty["lag_s"] != 0  # a due job may wait


def test_a_known_time_is_kept_beside_one_that_cannot_be_read() -> None:
    assert rq_row(queued=b"yesterday")["oldest_undelivered_s"] == 20
