"""The agent's process for brokers: there while one is configured, also after SIGHUP; started again."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hiredis

from agent.common.resp import RedisUrl, RespClient
from tests.servers.test_redis_failover import Pair
from tests.system.agent import Agent

BASE = "prometheus: ''\n"


def brokers(agent: Agent) -> list[int]:
    return [int(p["pid"]) for p in agent.status()["processes"] if p["role"] == "redis poller"]


def test_it_is_there_while_a_broker_is_configured(start: Callable[..., Agent]) -> None:
    agent = start(config=BASE).ready()
    agent.root.chmod(0o755)  # its own user reads the settings again
    assert brokers(agent) == []
    agent.config.write_text(f"{BASE}redis: ['redis://:secret@127.0.0.1:1/0?streams=a']\n")
    os.kill(agent.process.pid, signal.SIGHUP)
    (pid,) = agent.until(lambda: brokers(agent))
    assert "brokers are now 1 of redis" in agent.log()
    assert "secret" not in agent.log()
    row, *_ = agent.some("queue_lag", "failure = 'refused'")
    assert (row["system"], row["status"], row["peer"]) == ("redis", "down", None)

    os.kill(pid, signal.SIGKILL)
    (again,) = agent.until(lambda: [one for one in brokers(agent) if one != pid])
    assert "redis poller: the process that polls redis ended (SIGKILL)" in agent.log()
    row, *_ = agent.some("queue_lag", "failure = 'unasked'")
    assert "SIGKILL" in row["reason"]
    reported = agent.rows("probe_status", "probe = 'redis poller'", 2)
    assert [one["state"] for one in reported] == ["degraded", "attached"]

    agent.config.write_text(BASE)
    os.kill(agent.process.pid, signal.SIGHUP)
    agent.until(lambda: not brokers(agent))
    agent.until(lambda: not os.path.exists(f"/proc/{again}"))  # nobody waits for its end
    agent.config.write_text(f"{BASE}redis: ['redis://127.0.0.1:1']\n")
    os.kill(agent.process.pid, signal.SIGHUP)
    (last,) = agent.until(lambda: brokers(agent))
    assert agent.stop() == 130
    assert not os.path.exists(f"/proc/{last}")


def test_a_deleted_group_and_a_fail_over_are_findings(start: Callable[..., Agent], tmp_path: Path) -> None:
    """Of a real Redis: a group that its consumer goes on asking for, and entries that a replica never got."""
    pair = Pair(tmp_path)
    consumer = RespClient(RedisUrl.parse(f"redis://127.0.0.1:{pair.primary.port}"), 20)

    def found(symptom: str) -> list[dict[str, Any]]:
        where = f"symptom = '{symptom}' AND sentence LIKE '%{'jobs' if symptom == 'queue_lag' else pair.address.port}%'"
        return agent.rows("finding", where)

    try:
        consumer.pipeline([("XADD", "jobs", "*", "k", "v"), ("XGROUP", "CREATE", "jobs", "g", "0")])
        url = f"redis://127.0.0.1:{pair.address.port}/0"
        agent = start(config=f"{BASE}redis: ['{url}']\n").ready()
        assert agent.rows("queue_lag", "destination = 'jobs' AND status = 'ok'", 2, limit_s=20)
        consumer.pipeline([("XGROUP", "DESTROY", "jobs", "g")])

        def asked_in_vain() -> list[dict[str, Any]]:
            (reply,) = consumer.pipeline([("XREADGROUP", "GROUP", "g", "c", "STREAMS", "jobs", ">")])
            assert isinstance(reply, hiredis.ReplyError)
            return found("queue_lag")

        (finding, *_) = agent.until(asked_in_vain)
        assert (finding["cause"], finding["state"]) == ("queue_deleted", "open")

        consumer.pipeline([("XGROUP", "CREATE", "jobs", "g", "0")])
        pair.caught_up()
        pair.link.cut()
        consumer.pipeline([("XADD", "jobs", "*", "k", "v" * 1000) for _ in range(23)])
        assert agent.some("queue_lag", "destination = 'jobs' AND lag_messages = 24", limit_s=20)
        pair.fail_over()
        (finding, *_) = agent.until(lambda: found("entries_lost"))
        assert finding["cause"] == "failover"
        assert "fail-over: writes of at least" in finding["sentence"]
    finally:
        consumer.close()
        pair.end()
