"""Which rule a refusal names, in the words of the releases that have been seen."""

from __future__ import annotations

import hiredis
import pytest

from agent.queues.redis_rights import Command, missing_rule

PUBLISH: Command = ("PUBLISH", "/0.celery.pidbox", b"{}")


@pytest.mark.parametrize(
    ("command", "words", "rule"),
    [
        (PUBLISH, "this user has no permissions to run the 'publish' command", "+publish"),  # Redis 7.0
        (PUBLISH, "this user has no permissions to access one of the channels used as arguments", "&/0.celery.pidbox"),
        (("LLEN", "jobs"), "this user has no permissions to access one of the keys used as arguments", "~jobs"),
        (PUBLISH, "User mon has no permissions to run the 'publish' command", "+publish"),  # Redis 8.0
        (PUBLISH, "No permissions to access a channel", "&/0.celery.pidbox"),
        (("LLEN", "jobs"), "No permissions to access a key", "~jobs"),
        (("XINFO", "GROUPS", "jobs"), "User mon has no permissions to run the 'xinfo|groups' command", "+xinfo|groups"),
    ],
)
def test_a_refusal_names_the_missing_rule(command: Command, words: str, rule: str) -> None:
    assert missing_rule(command, hiredis.ReplyError(f"NOPERM {words}")) == rule
    assert missing_rule(command, hiredis.ReplyError(f"ERR {words}")) == ""
