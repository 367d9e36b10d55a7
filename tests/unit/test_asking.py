"""Who asks queues: threads beside the loop, and the brokers' process, killed, stopped, replaced and ended. Real
processes and sockets.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from agent.batch import Batch, make
from agent.common.alive import gone
from agent.correlate.brokers import BrokerWatch
from agent.correlate.rows import OfSecond
from agent.correlate.thresholds import CorrelatorConfig
from agent.queues.poller import QueuePoller
from agent.queues.poller_process import BrokerPoller
from agent.queues.poller_worker import BUDGET_BYTES
from agent.tables import TABLES
from tests.patience import PATIENCE, until
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
FAILURES = TABLES["queue_lag"].by_name["failure"].names


class Kept:
    """A ``BrokerPoller`` that is looked after as the agent's loop does, with one server that refuses connections; what
    it gave by table.
    """

    def __init__(self, kind: str = "redis") -> None:
        self.url = f"redis://:secret@127.0.0.1:{free_port()}"
        self.brokers = BrokerPoller(kind, (self.url,), 0.1)
        self.rows: dict[str, list[np.void]] = {}

    def turn(self) -> None:
        time.sleep(0.01)
        for batch in self.brokers.drain(time.clock_gettime_ns(time.CLOCK_BOOTTIME)):
            self.rows.setdefault(batch.table, []).extend(batch.rows)

    def until(self, what: Callable[[], object]) -> None:
        until(what, 20, 0, why=lambda: self.rows, turn=self.turn)

    def reported(self, failure: str) -> list[np.void]:
        return [
            row for row in self.rows.get("queue_lag", ()) if row["failure"] >= 0 and FAILURES[row["failure"]] == failure
        ]

    def again(self) -> None:
        """Rows of the server come from now on."""
        self.rows.clear()
        self.until(lambda: self.reported("refused"))

    @property
    def pid(self) -> int:
        (one,) = self.brokers.processes()
        assert one["role"] == "redis poller"
        return int(one["pid"])

    def reasons(self) -> list[tuple[int, bytes]]:
        return [(row["state"], row["reason"]) for row in self.rows.get("probe_status", ())]


@pytest.fixture
def kept() -> Iterator[Kept]:
    one = Kept()
    yield one
    pids = [p["pid"] for p in one.brokers.processes()]
    one.brokers.close()
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


def test_rows_come_from_a_process_without_privilege_and_without_numpy(kept: Kept) -> None:
    kept.until(lambda: kept.reported("refused"))
    row = kept.reported("refused")[0]
    assert (row["system"], row["status"]) == (b"redis", b"down")
    assert row["reason"] == f"redis {kept.url.partition('@')[2]}: Connection refused".encode()
    assert 0 <= time.clock_gettime_ns(time.CLOCK_BOOTTIME) - row["t_ns"] < 20e9 * PATIENCE
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{kept.pid}/status").read_text().splitlines() if ":\t" in line
    )
    assert (int(status["CapEff"], 16), int(status["CapPrm"], 16), status["NoNewPrivs"]) == (0, 0, "1")
    assert "numpy" not in Path(f"/proc/{kept.pid}/maps").read_text()
    assert f"Max data size {BUDGET_BYTES}" in " ".join(Path(f"/proc/{kept.pid}/limits").read_text().split())
    assert b"secret" not in Path(f"/proc/{kept.pid}/cmdline").read_bytes()
    held = [os.readlink(fd.path) for fd in os.scandir(f"/proc/{kept.pid}/fd") if int(fd.name) > 2]
    assert all(name.startswith("socket:") for name in held), held
    assert kept.brokers.failures() == {}


def test_one_that_is_killed_is_reported_and_started_again(kept: Kept, capfd: pytest.CaptureFixture[str]) -> None:
    kept.until(lambda: kept.reported("refused"))
    pid = kept.pid
    os.kill(pid, signal.SIGKILL)
    kept.until(kept.brokers.failures)
    assert "ended (SIGKILL), and is started again" in kept.brokers.failures()["redis poller"]
    kept.until(lambda: kept.reported("unasked"))
    row = kept.reported("unasked")[0]
    assert (row["system"], row["status"]) == (b"redis", b"down")
    assert b"SIGKILL" in row["reason"]
    kept.again()
    kept.until(kept.reasons)
    assert kept.pid != pid
    assert kept.reasons() == [(0, b"")]  # attached
    assert kept.brokers.failures() == {}
    assert kept.brokers.process.restarts.count == 1
    assert "SIGKILL" in capfd.readouterr().err


def test_one_that_stands_still_is_reported_and_its_pause_is_no_servers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        kept = Kept()
        kept.brokers.process.silent_s = 1.0
        kept.brokers.use((f"redis://127.0.0.1:{silent.getsockname()[1]}",), 0.1)
        try:
            kept.until(lambda: kept.reported("no_answer"))
            os.kill(kept.pid, signal.SIGSTOP)  # it asks nearly all the time, for half a second each
            kept.until(
                lambda: kept.reported("unasked") and "no heartbeat" in kept.brokers.failures().get("redis poller", "")
            )
            kept.rows.clear()
            time.sleep(1)
            os.kill(kept.pid, signal.SIGCONT)
            kept.until(lambda: len(kept.reported("no_answer")) > 2 and kept.rows.get("loss"))
            assert max(row["poll_ns"] for row in kept.reported("no_answer")) < 1.5e9 * PATIENCE
            assert kept.rows["loss"][0]["count"] == 1
            kept.until(lambda: not kept.brokers.failures())
            assert kept.brokers.process.restarts.count == 0
        finally:
            kept.brokers.close()


def test_there_is_none_where_no_broker_is_named_and_other_settings_are_another(kept: Kept) -> None:
    kept.until(lambda: kept.reported("refused"))
    pid = kept.pid
    kept.brokers.use((kept.url,), 0.1)
    assert kept.pid == pid
    kept.brokers.use((), 0.1)
    assert kept.brokers.processes() == []
    kept.until(lambda: not os.path.exists(f"/proc/{pid}"))
    kept.turn()
    kept.rows.clear()
    kept.turn()
    assert kept.rows == {}
    kept.brokers.use((kept.url,), 0.2)
    kept.again()
    assert kept.pid != pid


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("how", ["close", "renew"])
def test_one_with_which_nothing_is_wrong_is_asked_to_end(kept: Kept, how: str, stopped: bool) -> None:
    """Another agent on this host would tell of one that is killed."""
    kept.until(lambda: kept.reported("refused"))
    child = kept.brokers.process.process
    assert child is not None
    if stopped:
        os.kill(child.pid, signal.SIGSTOP)
    getattr(kept.brokers.process, how)()
    assert child.wait(10 * PATIENCE) == 0


def test_a_client_that_cannot_be_used_is_reported() -> None:
    kept = Kept("nosuch")
    try:
        kept.until(kept.brokers.failures)
        assert "ModuleNotFoundError" in kept.brokers.failures()["nosuch"]
    finally:
        kept.brokers.close()


def test_what_nobody_takes_is_counted(kept: Kept) -> None:
    kept.brokers.use((kept.url,) * 40, 0.1)
    # read so seldom that the socket is full in between
    until(lambda: "loss" in kept.rows, 60, 2, why=lambda: kept.rows, turn=kept.turn)
    row = kept.rows["loss"][0]
    assert (row["source"], TABLES["loss"].by_name["stage"].names[row["stage"]]) == (b"redis poller", "intake")
    assert row["count"] > 0


def test_it_ends_with_the_agent() -> None:
    code = (
        "import time; from agent.queues.poller_process import BrokerPoller;"
        " b = BrokerPoller('redis', ['redis://127.0.0.1:1'], 1);"
        " print(b.processes()[0]['pid'], flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as agent:
        assert agent.stdout is not None
        pid = int(agent.stdout.readline())
        time.sleep(0.5)
        agent.kill()
    until(lambda: gone(pid, None))


class Fast:
    name = "fast"

    def poll(self) -> list[Batch]:
        return [make("queue_lag", 3, system=b"fast")]

    def close(self) -> None:
        pass


class Broken(Fast):
    name = "broken"

    def poll(self) -> list[Batch]:
        raise ValueError("a defect")


def test_the_agents_own_poller_runs_beside_and_counts_what_nobody_drained() -> None:
    poller = QueuePoller([Fast(), Broken()], interval_s=0.01, capacity=2)
    until(lambda: poller._dropped and poller.failures())
    poller.close()
    *batches, loss = poller.drain(5)
    assert [len(batch.rows) for batch in batches] == [3, 3]
    assert loss.table == "loss"
    assert loss.rows["count"][0] == poller._dropped > 0
    assert list(poller.drain(6)) == []
    assert poller.failures() == {"broken": "ValueError: a defect"}


def test_a_broker_that_was_not_asked_is_not_down() -> None:
    watch = BrokerWatch(CorrelatorConfig())
    row = make(
        "queue_lag",
        1,
        t_ns=10**9,
        system=b"redis",
        status=b"down",
        poll_ns=10**6,
        failure=TABLES["queue_lag"].code("failure", "unasked"),
    ).rows
    assert len(watch.fill(1, OfSecond({"queue_lag": row}))) == 0
    row["failure"] = TABLES["queue_lag"].code("failure", "refused")
    assert len(watch.fill(1, OfSecond({"queue_lag": row}))) == 1
