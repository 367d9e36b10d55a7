"""A finding names each process once, however many symptoms of it were seen."""

from __future__ import annotations

from agent.correlate.episode import UNKNOWN_CULPRIT, Culprit, Episode
from agent.correlate.named import others
from tests.unit.correlate_scenarios import REDIS, REDIS_PID, peer


def episode(
    subject: str,
    pid: int | None = REDIS_PID,
    key: tuple[object, ...] = (1, 2),
    comm: str = "redis-server",
    **facts: float,
) -> Episode:
    return Episode("service_latency", key, 0, subject, "", pid=pid, comm=comm, facts=dict(facts))


STOPPED = episode("redis-server pid 900")
LATE = episode("redis-server pid 900 on port 6399", key=(4026, 6399), port=6399.0)
BROKER = episode("the redis server at 127.0.0.1:6399", None, ("redis", REDIS), "")
LIMITER = episode("limiter api (python3 pid 4242)", 4242, ("api", 4242, 1), "python3")


def test_one_name_a_process() -> None:
    assert others(LIMITER, [STOPPED, LATE, BROKER, LIMITER], UNKNOWN_CULPRIT) == [STOPPED]
    assert others(STOPPED, [LATE, STOPPED, BROKER, LIMITER], UNKNOWN_CULPRIT) == [LIMITER]
    assert others(LATE, [STOPPED, LATE, BROKER], UNKNOWN_CULPRIT) == []


def test_the_culprit_is_not_affected_by_itself() -> None:
    redis = Culprit(REDIS_PID, "redis-server")
    assert others(LIMITER, [STOPPED, LATE, BROKER, LIMITER], redis) == []
    assert others(LIMITER, [LATE, BROKER], redis) == [LATE], "where it serves is news"


def test_two_limiters_of_a_process_are_two_and_another_hosts_broker_is_another() -> None:
    second = episode("limiter login (python3 pid 4242)", 4242, ("login", 4242, 1), "python3")
    far = episode("the redis server at 10.0.0.9:6399", None, ("redis", peer("10.0.0.9", 6399)), "")
    assert others(LIMITER, [LIMITER, second, LATE, far], UNKNOWN_CULPRIT) == [second, LATE, far]
