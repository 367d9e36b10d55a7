"""Which rule a refusal names, in the words of the releases that have been seen, and which command was renamed."""

from __future__ import annotations

import socket
from contextlib import closing

import hiredis
import pytest

from agent.common.resp import RedisUrl
from agent.queues.brokers.redis import RedisStreams
from agent.queues.redis_rights import Command, missing_rule
from tests.hostile import serving

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


asked = list[bytes]()


def without_xinfo(connection: socket.socket) -> None:
    """Answers as a server with one stream and ``rename-command XINFO ""``. Notes each command."""
    answers = {b"SCAN": b"*2\r\n$1\r\n0\r\n*1\r\n$4\r\njobs\r\n", b"TIME": b"*2\r\n$1\r\n1\r\n$1\r\n0\r\n"}
    answers[b"XINFO"] = b"-ERR unknown command 'XINFO', with args beginning with: 'STREAM' 'jobs' \r\n"
    reader = hiredis.Reader()
    while data := connection.recv(65536):
        reader.feed(data)
        while (command := reader.gets()) is not False:
            asked.append(command[0])
            connection.sendall(answers.get(command[0], b"$0\r\n\r\n"))


@pytest.mark.parametrize(("options", "named"), [("", []), ("?streams=jobs", [b"jobs"])])
def test_a_server_without_a_command_is_not_ok(options: str, named: list[bytes]) -> None:
    with serving(without_xinfo) as port:
        queue = RedisStreams(RedisUrl.parse(f"redis://127.0.0.1:{port}{options}"), 5)
        asked.clear()
        with closing(queue):
            *rest, why = [queue.poll() for _ in range(3)][-1]
    assert (why["status"], why["failure"]) == ("unknown", "permission")
    assert why["reason"] == "the server does not know XINFO: renamed, or of a newer version"
    assert [row["destination"] for row in rest] == named
    assert all(row["reason"] == "ERR unknown command 'XINFO'" for row in rest)
    assert asked.count(b"XINFO") == 2  # not at each poll
