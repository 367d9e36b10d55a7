"""A whole agent beside a real Celery application: its worker goes on with its second broker."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tests.patience import until
from tests.servers.celery_pieces import Worker
from tests.servers.test_redis_streams import Redis
from tests.system.agent import Agent


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
