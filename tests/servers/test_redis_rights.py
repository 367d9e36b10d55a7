"""What still works when the ACL of a real Redis server refuses a command, and which rule is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent.common.resp import RedisUrl, RespClient
from agent.queues.brokers.redis import BROKER
from agent.tables import TABLES
from tests.servers.polled import poll
from tests.servers.test_redis_lag import READ, fill
from tests.servers.test_redis_streams import Redis, redis

__all__ = ["redis"]

#: As docs/queues-redis.md has it.
LEAST = "+client|setname +info +time +scan +xinfo +xrange +xpending"
DOCS = Path(__file__).parents[2] / "docs" / "queues-redis.md"


def jobs(server: Redis) -> None:
    """A stream with each of what is reported: 199 entries, 19 of them read by a group without a counter."""
    fill(server, 199, stream="jobs")
    server.do("XGROUP", "CREATE", "jobs", "g", "100-0")
    server.do(*READ, 19, "STREAMS", "jobs", ">")


def allow(server: Redis, rules: str, keys: str = "~*") -> str:
    """The URL of a user with these rules only."""
    server.do("ACL", "SETUSER", "mon", "reset", "on", ">secret", *keys.split(), *rules.split())
    return f"redis://mon:secret@127.0.0.1:{server.port}/0"


def failure(row: Any) -> str:
    return TABLES["queue_lag"].by_name["failure"].word(row["failure"])


def test_the_rights_of_the_docs_are_enough_and_each_is_needed(redis: Redis) -> None:
    assert f"ACL SETUSER tickscope on >PASSWORD resetchannels %R~* -@all {LEAST}" in DOCS.read_text()
    jobs(redis)
    url = allow(redis, f"-@all {LEAST}", "resetchannels %R~*")
    (row,) = poll(BROKER.sources([url])[0])
    assert (row["status"], row["lag_messages"], row["exact"], row["pending"]) == (b"ok", 80, 1, 19)
    assert (row["server_role"], row["holder"], row["consumers"]) == (b"primary", b"c", 1)
    assert row["memory_bytes"] > 0


#: The refused command, and the columns that are then unknown; all others are as with all rights.
REFUSED = {
    "xpending": {"oldest_pending_s", "redelivered", "pending_deleted", "holder"},
    "xrange": {"removed", "lag_at_least", "lag_messages", "exact", "inexact_reason", "oldest_undelivered_s", "lag_s"},
    "time": {"oldest_undelivered_s", "oldest_pending_s", "lag_s"},
    "info": {
        *("server_role", "memory_bytes", "clients", "clients_limit", "clients_refused", "errors", "errors_per_s"),
    },
    "xinfo|consumers": {"held_idle", "idle_holders", "idle_consumer", "idle_s"},
    "client|setname": set[str](),
}
#: idle_consumer: of those with a request since the poll before, which may be none.
VARYING = {
    *("t_ns", "poll_ns", "oldest_pending_s", "idle_s", "idle_consumer", "memory_bytes", "clients"),
    *("in_per_s", "out_per_s", "lag_s"),
}


@pytest.mark.parametrize("command", REFUSED)
def test_a_refused_command_costs_only_what_it_reports_and_its_rule_is_named(redis: Redis, command: str) -> None:
    jobs(redis)
    (other,) = BROKER.sources([redis.url])
    (whole,) = [poll(other) for _ in range(2)][-1]
    rules = [f"-{command}"] if "|" not in command else []
    given = LEAST.replace("+xinfo", "+xinfo|stream +xinfo|groups") if command == "xinfo|consumers" else LEAST
    given = given.replace("+client|setname", "") if command == "client|setname" else given
    (queue,) = BROKER.sources([allow(redis, " ".join([f"-@all {given}", *rules]))])
    for _ in range(3):
        row, *more = poll(queue)
        assert (row["destination"], row["status"], row["pending"]) == (b"jobs", b"ok", 19)
        if command == "client|setname":
            assert more == []
        else:
            (missing,) = more
            assert (missing["status"], failure(missing)) == (b"unknown", "permission")
            assert f"ACL SETUSER mon +{command}" in missing["reason"].decode()
    changed = {n for n in row.dtype.names if n not in VARYING and row[n].tobytes() != whole[n].tobytes()}
    assert changed <= REFUSED[command], changed
    logged = [dict(zip(one[::2], one[1::2], strict=True))[b"count"] for one in redis.do("ACL", "LOG")]  # type: ignore[attr-defined]
    assert sum(logged) <= (6 if command == "info" else 1)  # not at each poll; INFO is asked for six sections


@pytest.mark.parametrize(
    ("rules", "keys", "named", "rule"),
    [
        ("+info +ping +time", "~*", "", "+scan"),
        ("+info +scan +time", "~*", "", "+xinfo|groups +xinfo|stream"),
        (LEAST, "~others", "?streams=jobs", "~jobs"),
        (LEAST, "~others", "", "~jobs"),
        ("-@all", "~*", "?streams=jobs", "+info"),
    ],
)
def test_a_server_that_refuses_all_is_not_down(redis: Redis, rules: str, keys: str, named: str, rule: str) -> None:
    jobs(redis)
    (queue,) = BROKER.sources([allow(redis, rules, keys) + named])
    for _ in range(2):
        rows = poll(queue)
        assert {bytes(row["status"]) for row in rows} <= {b"unknown", b""}
        (server,) = [row for row in rows if row["status"] == b"unknown" and row["destination"] == b""]
        assert failure(server) == "permission"
        assert rule in server["reason"].decode()
        assert b"secret" not in server["reason"]


def test_rights_that_are_taken_away_and_given_back(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.queues.redis_rights.RETRY_NS", 0)
    monkeypatch.setattr("agent.queues.redis_rights._MISSED_NS", 0)
    jobs(redis)
    (queue,) = BROKER.sources([allow(redis, LEAST)])
    assert poll(queue)["status"].tolist() == [b"ok"]
    redis.do("ACL", "SETUSER", "mon", "-xinfo")
    (row, *_) = poll(queue)
    assert (row["destination"], row["consumer_group"], row["status"]) == (b"jobs", b"g", b"unknown")
    assert (failure(row), row["reason"]) == ("permission", b"missing ACL rule +xinfo|stream")
    redis.do("ACL", "SETUSER", "mon", "+xinfo")
    (row, *_) = poll(queue)
    assert (row["status"], row["lag_messages"]) == (b"ok", 80)


def test_a_database_that_is_refused_is_not_down(redis: Redis) -> None:
    url = allow(redis, LEAST.replace("+client|setname", "")).replace("/0", "/3")
    (row,) = poll(BROKER.sources([url])[0])
    assert (row["status"], failure(row)) == (b"unknown", "permission")
    assert b"select" in row["reason"]


def test_a_password_with_special_characters(redis: Redis) -> None:
    redis.do("ACL", "SETUSER", "mon", "reset", "on", ">p@ss:w/rd#1%", "~*", *LEAST.split())
    client = RespClient(RedisUrl.parse(f"redis://mon:p%40ss%3Aw%2Frd%231%25@127.0.0.1:{redis.port}/0"), 20)
    (reply,) = client.pipeline([("TIME",)])
    client.close()
    assert len(reply) == 2


def test_a_server_without_scan_is_not_down_and_its_named_streams_are_watched(tmp_path: Path) -> None:
    with Redis(tmp_path, "--rename-command", "SCAN", "") as server:
        jobs(server)
        for options, watched in (("", []), ("?streams=jobs,mail*", [b"jobs"])):
            (queue,) = BROKER.sources([f"{server.url}{options}"])
            rows = poll(queue)
            queue.close()
            (why,) = rows[rows["failure"] >= 0]
            assert (why["status"], failure(why)) == (b"unknown", "permission")
            assert why["reason"] == (
                b"cannot list streams, name them with ?streams= in the URL: ERR unknown command 'SCAN'"
            )
            assert rows["destination"][rows["lag_messages"] >= 0].tolist() == watched
            assert b"down" not in rows["status"].tolist()


@pytest.mark.parametrize("command", ["XINFO", "XPENDING", "XRANGE", "TIME", "INFO"])
def test_a_renamed_command_is_named(tmp_path: Path, command: str) -> None:
    with Redis(tmp_path, "--rename-command", command, "") as server:
        jobs(server)
        (queue,) = BROKER.sources([server.url])
        rows = poll(queue)
        queue.close()
        (why,) = rows[rows["failure"] >= 0]
        assert (why["status"], failure(why)) == (b"unknown", "permission")
        assert why["reason"] == f"the server does not know {command}: renamed, or of a newer version".encode()
