"""A whole agent beside a real Celery application: its worker is stopped or killed, and its queue has a finding."""

from __future__ import annotations

import signal
import threading
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.patience import until
from tests.ports import free_port
from tests.servers.celery_pieces import Worker, application
from tests.servers.test_redis_streams import Redis
from tests.system.agent import Agent

#: Rows of a healthy queue before its worker ends, one a second.
USUAL = 20
PER_S = 20


@pytest.mark.parametrize(("number", "cause"), [(signal.SIGSTOP, "process_stopped"), (signal.SIGKILL, "process_killed")])
def test_a_worker_that_ends_is_a_finding_about_its_queue(
    start: Callable[..., Agent], tmp_path: Path, number: int, cause: str
) -> None:
    page, over = free_port(), threading.Event()
    with ExitStack() as ends:
        redis = ends.enter_context(Redis(tmp_path))
        agent = start("--celery", f"{redis.url}?queues=celery", config=f"prometheus: 127.0.0.1:{page}\n").ready()
        worker = Worker(redis.url, tmp_path)
        ends.callback(worker.end)
        app = application(redis.url)

        def send() -> None:
            while not over.wait(1 / PER_S):
                app.send_task("early", (0,))

        sender = threading.Thread(target=send)
        sender.start()
        ends.callback(sender.join)
        ends.callback(over.set)

        def found() -> dict[str, object] | None:
            rows = agent.json("findings")["rows"]
            return next((row for row in rows if row["symptom"] == "queue_lag"), None)

        agent.rows("queue_lag", "system = 'celery' AND lag_messages IS NOT NULL", USUAL, limit_s=60)
        assert found() is None
        worker.signal(number)
        finding = until(found)
        (queue,) = [row for row in agent.json("queues")["rows"] if row["system"] == "celery"]
        with urllib.request.urlopen(f"http://127.0.0.1:{page}/metrics", timeout=20) as answer:
            metrics = answer.read().decode()
    assert "celery queue celery" in str(finding["subject"])
    assert finding["cause"] in (cause, "consumer_stopped"), finding
    assert (queue["queue"], queue["exact"]) == ("celery", True)
    assert queue["length"] > 0
    assert queue["oldest_s"] > 0
    lag = [line for line in metrics.splitlines() if line.startswith("tickscope_queue_lag{")]
    assert any('system="celery"' in line and not line.endswith(" 0") for line in lag), lag


def test_a_worker_that_goes_on_with_its_second_broker_is_listed_with_the_queue(
    start: Callable[..., Agent], tmp_path: Path
) -> None:
    with ExitStack() as ends:
        brokers = []
        for name in "ab":
            (tmp_path / name).mkdir()
            brokers.append(ends.enter_context(Redis(tmp_path / name)))
        urls = [word for one in brokers for word in ("--celery", f"{one.url}?queues=celery&workers=true")]
        agent = start(*urls).ready()
        worker = Worker(";".join(one.url for one in brokers), tmp_path)
        ends.callback(worker.end)

        def listed(port: int) -> dict[str, object] | None:
            """The worker, by the queue of that broker."""
            shown = agent.json("queues", "show", "celery", "--cluster", f"127.0.0.1:{port}")
            named = (one for one in shown.get("clients", ()) if one["worker"] == worker.name)
            return next((one for one in named if one["server"] == f"127.0.0.1:{port}"), None)

        first, second = (one.port for one in brokers)
        before = until(lambda: listed(first))
        assert (before["pid"], before["switches"]) == (worker.process.pid, 0)
        assert before["connects"] > 0
        brokers[0].end()
        after = until(lambda: listed(second))
        assert (after["pid"], after["proc_start_ns"]) == (before["pid"], before["proc_start_ns"])
        assert after["switches"] > 0
        assert after["failed"] + after["closed"] > 0
