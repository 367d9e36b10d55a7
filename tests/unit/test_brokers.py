"""Kinds of brokers: found by being there, and all that follows from one: its setting, flag, variable, what ``doctor``
says. Rows as they are packed.
"""

from __future__ import annotations

import os
import pwd
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from agent import doctor
from agent.cli.run import command
from agent.columns import NULL_I64
from agent.common.address import peer_bytes
from agent.common.resp import RedisUrl
from agent.config import Config, read_file, resolve
from agent.errors import AgentError
from agent.posix import privilege
from agent.queues import brokers as room
from agent.queues import catalogue
from agent.queues.judged import Judged
from agent.queues.order import OrderedQueue
from agent.queues.packing import ROW_BYTES, SENT, TABLE, pack
from agent.queues.queue import Row
from agent.queues.redis_places import ClusterStreams
from agent.queues.timers import QueueTimer, ServerTimers, TimedQueue
from agent.tables import TABLES

ROOT = Path(__file__).parents[2]
#: A broker in a file of its own, and nothing else.
HEAP = """
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agent.common.settings import setting, text, whole
from agent.errors import USAGE, AgentError
from agent.queues.catalogue import Broker


class Heap:
    def __init__(self, path):
        self.name, self.path = f"heap {path}", path

    def poll(self):
        lag = len(os.listdir(self.path))
        row = {"destination": self.path.name, "lag_messages": lag, "added": 3, "position": 3, "peer": "127.0.0.1:99"}
        return [row]

    def close(self):
        pass


def parse(text):
    if not text.startswith("/"):
        raise AgentError(f"heap: {text} is no path", exit_code=USAGE)
    return Path(text)


@dataclass(frozen=True)
class HeapSettings:
    path: str = setting("", text("a path"))
    least: int = setting(0, whole(0, 9))


def opened(server):
    return Heap(Path(server.path) if isinstance(server, HeapSettings) else server)


BROKER = Broker(
    "heap",
    "Heap directories",
    "files that wait",
    "/var/heap/mail",
    "any directory",
    parse,
    opened,
    section=HeapSettings,
)
"""


@pytest.fixture
def heap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with 7 files, and a kind of broker for such."""
    (tmp_path / "kinds").mkdir()
    (tmp_path / "kinds" / "heap.py").write_text(HEAP)
    monkeypatch.setattr(room, "__path__", [*room.__path__, str(tmp_path / "kinds")])
    (tmp_path / "mail").mkdir()
    for i in range(7):
        (tmp_path / "mail" / str(i)).touch()
    yield tmp_path / "mail"
    sys.modules.pop("agent.queues.brokers.heap", None)
    catalogue.broker.cache_clear()


def write(directory: Path, text: str) -> str:
    file = directory / "t.yaml"
    file.write_text(text)
    return str(file)


def test_a_file_that_is_there_is_a_kind_of_broker(heap: Path, tmp_path: Path) -> None:
    file = write(tmp_path, f"redis: [redis://a]\nheap: [{heap}]\n")
    config = resolve({}, {}, file)
    assert config.queues.brokers == {"redis": ("redis://a",), "heap": (str(heap),)}
    assert resolve({}, {"TICKSCOPE_HEAP_URL": "/b /c"}, file).queues.brokers["heap"] == ("/b", "/c")
    assert resolve({"heap": ("/d",)}, {"TICKSCOPE_HEAP_URL": "/b /c"}, file).queues.brokers == {
        "redis": ("redis://a",),
        "heap": ("/d",),
    }
    (queue,) = catalogue.broker("heap").sources(config.queues.brokers["heap"])
    (row,) = np.frombuffer(pack(queue.poll()), TABLE.dtype)
    assert row["lag_messages"] == 7
    assert (row["system"], row["peer"].tobytes()) == (b"heap", peer_bytes("127.0.0.1", 99))
    assert row["t_ns"] > 0 < row["poll_ns"]
    config = Config.from_json(
        resolve({}, {}, write(tmp_path, f"heap: [{{path: {heap}, least: 2}}, {heap}]\n")).to_json()
    )
    assert config.queues.brokers == {"heap": ({"path": str(heap), "least": 2}, str(heap))}
    assert [queue.name for queue in catalogue.broker("heap").sources(config.queues.brokers["heap"])] == [
        f"heap {heap}"
    ] * 2


class Scripted:
    """A queue that says what it is told to."""

    name = "scripted"

    def __init__(self, *polls: list[Row]) -> None:
        self.polls = list(polls)

    def poll(self) -> list[Row]:
        return self.polls.pop(0)

    def close(self) -> None:
        self.polls = []


def judged(*polls: list[Row], each_s: float = 2) -> list[list[Row]]:
    """What becomes of these polls, each_s apart."""
    seconds = iter(range(2 * len(polls)))
    queue = Judged("heap", Scripted(*polls), lambda: int(next(seconds) // 2 * each_s * 10**9))
    return [queue.poll() for _ in polls]


def test_whether_a_queue_moves_is_judged_for_every_broker() -> None:
    still = [[{"destination": "a", "lag_messages": 5, "consumers": 0, "position": 3, "added": 8, "acked": 3}]] * 7
    (last,) = judged(*still)[-1]
    assert (last["status"], last["reason"]) == ("stopped", "no consumer for 12 s, 5 undelivered")
    assert (last["in_per_s"], last["out_per_s"]) == (0.0, 0.0)
    assert not {"added", "acked", "position"} & set(last)
    moving = [
        [{"destination": "a", "lag_messages": 5, "position": i, "added": 8 + 6 * i, "acked": 6 * i}] for i in range(7)
    ]
    (last,) = judged(*moving)[-1]
    assert (last["status"], last["in_per_s"], last["out_per_s"]) == ("ok", 3.0, 3.0)
    growing = [[{"destination": "a", "lag_messages": 5 + i, "kept_s": 60, "oldest_undelivered_s": i}] for i in range(9)]
    (last,) = judged(*growing)[-1]
    assert (last["status"], last["limit_in_s"]) == ("lagging", pytest.approx(104))
    assert np.isnan(last["in_per_s"]) and np.isnan(last["drains_in_s"])  # type: ignore[call-overload]
    falling = [[{"destination": "a", "lag_messages": 500 - 10 * i}] for i in range(9)]
    (last,) = judged(*falling)[-1]
    assert (last["status"], last["drains_in_s"]) == ("draining", pytest.approx(84))
    assert len(np.frombuffer(pack([last]), TABLE.dtype)) == 1
    (gone,) = judged([{"destination": "a", "lag_messages": None, "inexact_reason": "no offsets"}])[0]
    assert (gone["status"], gone["reason"]) == ("unknown", "no offsets")


def test_what_a_broker_reports_itself_stays_and_an_outage_begins_anew_but_no_missed_answer() -> None:
    still: list[Row] = [{"destination": "a", "lag_messages": 5, "position": 3}]
    for failure, times, status in (
        ("refused", 1, "ok"),
        ("closed", 1, "ok"),
        ("no_answer", 1, "stalled"),
        ("no_answer", 3, "stalled"),
        ("no_answer", 4, "ok"),
    ):
        (last,) = judged(*[still] * 6, *[[{"destination": "a", "status": "down", "failure": failure}]] * times, still)[
            -1
        ]
        assert last["status"] == status, (failure, times)
    (own,) = judged(
        [{"destination": "a", "lag_messages": 5, "status": "stalled", "in_per_s": 7.0, "t_ns": 4, "system": "mine"}]
    )[0]
    assert (own["status"], own["in_per_s"], own["t_ns"], own["system"]) == ("stalled", 7.0, 4, "mine")
    (bare,) = judged([{"reason": "no consumer group"}])[0]
    assert "status" not in bare


def test_repeated_figures_keep_the_state_and_the_rates() -> None:
    def poll(added: int, acked: int, **more: object) -> list[Row]:
        return [{"destination": "a", "lag_messages": 5, "added": added, "acked": acked, "position": acked, **more}]

    rates = [
        (row["in_per_s"], row["out_per_s"], "repeated" in row)
        for (row,) in judged(
            poll(8, 2), poll(14, 8), poll(14, 8, repeated=True), poll(14, 8, repeated=True), poll(32, 20)
        )[1:]
    ]
    assert rates == [(3.0, 3.0, False)] * 3 + [(3.0, 2.0, False)]


def test_the_clusters_name_of_the_settings_is_that_of_all_its_rows() -> None:
    class Ordered(Scripted, OrderedQueue, TimedQueue):
        def order(self) -> list[Row]:
            return [{"destination": "a", "cluster": "its own"}]

        def timers(self) -> ServerTimers:
            return ServerTimers([QueueTimer(b"a", b"", "ttl")])

    source = Judged("heap", Ordered([{"destination": "a", "cluster": "its own"}, {"destination": "b"}]), named="shop")
    assert {row["cluster"] for row in [*source.poll(), *source.order(), *source.timers()]} == {"shop"}


def test_timers_of_two_servers_of_one_name_are_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The servers of a NATS cluster have one name, and each knows the timers of its own streams."""
    kind = catalogue.broker("nats")
    monkeypatch.setattr(kind.open, "timers", lambda _: ServerTimers([QueueTimer(b"a", b"", "retention")]))

    def clusters(*names: str) -> set[object]:
        given = [{"url": f"http://10.0.0.{at}:8222", "cluster": name} for at, name in enumerate(names, 1)]
        return {row["cluster"] for source in kind.sources(given) for row in source.timers()}

    assert clusters("shop", "shop") == {"shop 10.0.0.1:8222", "shop 10.0.0.2:8222"}
    assert clusters("shop", "mail") == {"shop", "mail"}
    assert clusters("", "") == {"10.0.0.1:8222", "10.0.0.2:8222"}


def test_servers_with_long_names_that_begin_alike_are_two_clusters() -> None:
    host = "orders-production-primary.c9akciq32rkq.eu-central-1.rds.amazonaws.com:5432"
    clusters = set()
    for database in ("shop", "mail"):
        queue = Scripted([{"destination": "jobs", "lag_messages": 1}])
        queue.name = f"postgresql {host}/{database}"
        (row,) = np.frombuffer(pack(Judged("postgresql", queue).poll()), TABLE.dtype)
        clusters.add(row["cluster"])
    assert len(clusters) == 2


class Answers:
    """A server of several, which takes so long to answer."""

    role, moved = "primary", False

    def __init__(self, name: str, takes_s: float) -> None:
        self.name, self._takes_s = name, takes_s

    def poll(self) -> list[Row]:
        time.sleep(self._takes_s)
        return [{"destination": self.name, "lag_messages": 1}]

    def close(self) -> None: ...


def test_each_server_of_a_redis_cluster_has_the_time_of_its_own_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClusterStreams, "_find", lambda _: None)
    streams: Any = ClusterStreams(RedisUrl.parse("redis+cluster://127.0.0.1:1"), Answers)
    streams._shards = {
        ((at, at),): (("127.0.0.1", at), Answers(name, takes_s))
        for at, (name, takes_s) in enumerate((("slow", 0.3), ("well", 0.0)))
    }
    found: Any = Judged("redis", streams).poll()
    took_ns = {row["destination"]: row["poll_ns"] for row in found if "destination" in row}
    assert took_ns["slow"] >= 300_000_000 > 2 * took_ns["well"]


@pytest.mark.parametrize(
    "peer", ["", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:65536", "::1:80", "[127.0.0.1:1", "redis:6379", b"127.0.0.1:80"]
)
def test_what_is_no_peer_is_refused(peer: str | bytes) -> None:
    if peer:
        with pytest.raises(ValueError, match=r"no (ip:port|address)"):
            pack([{"peer": peer}])
    for good, stored in (("127.0.0.1:80", peer_bytes("127.0.0.1", 80)), ("[::1]:80", peer_bytes("::1", 80))):
        assert np.frombuffer(pack([{"peer": good}]), TABLE.dtype)["peer"][0].tobytes() == stored


def test_its_mistakes_name_their_line(heap: Path, tmp_path: Path) -> None:
    for text, words in (
        ("heap: [tmp]", "tmp is no path"),
        ("heap: [1]", "heap must be a list of texts"),
        ("heap: [/a, {path: /b, leest: 2}]", "did you mean least"),
        ("heap: {least: 10}", "heap.0.least cannot be 10"),
        ("hep: [/tmp]", "did you mean heap"),
        ("brokers: {}", "there is no setting"),
    ):
        with pytest.raises(AgentError) as raised:
            read_file(Path(write(tmp_path, f"poll_s: 2\n{text}\n")), required=True)
        assert "t.yaml:2:" in str(raised.value)
        assert words in str(raised.value)
        assert raised.value.exit_code == 2
    with pytest.raises(AgentError, match="no path"):
        resolve({}, {"TICKSCOPE_HEAP_URL": "tmp"}, write(tmp_path, ""))


def test_each_kind_has_a_flag() -> None:
    output = CliRunner().invoke(command, ["--help"]).output
    for one in catalogue.brokers().values():
        assert one.flag in output
        assert one.title in output


def test_doctor_asks_each_server_once(heap: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    monkeypatch.setenv(
        "TICKSCOPE_CONFIG",
        write(tmp_path, f"redis: ['redis://:secret@127.0.0.1:{port}']\nheap: [{heap}, {heap}/none]\n"),
    )
    for directory in (*list(heap.parents)[:4], heap):  # the agent's own user has to get there, where this is root
        os.chmod(directory, 0o755)
    redis, there, missing = doctor.brokers()
    assert (redis.id, redis.state, redis.found) == ("redis", "warn", f"redis 127.0.0.1:{port}: Connection refused")
    assert "setting redis" in redis.remedy
    assert (there.id, there.state) == ("heap", "ok")
    assert (missing.id, missing.state) == ("heap", "fail")
    assert "FileNotFoundError" in missing.found
    monkeypatch.setenv("TICKSCOPE_CONFIG", write(tmp_path, "heap: [x]\n"))
    (wrong,) = doctor.brokers()
    assert (wrong.id, wrong.state) == ("settings", "fail")
    assert "t.yaml:1: heap: x is no path" in wrong.found


@pytest.mark.skipif(os.geteuid() != 0, reason="root asks as another user")
def test_doctor_asks_as_the_agents_own_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        doctor, "_ask_brokers", lambda _: [doctor.Check("who", "ok", f"{os.getuid()} {os.getgroups()}")]
    )
    monkeypatch.setenv("TICKSCOPE_REDIS_URL", "redis://127.0.0.1:1")
    (who,) = doctor.brokers()
    users = {user.pw_name: user.pw_uid for user in pwd.getpwall()}
    assert who.found == f"{users.get(privilege.USER, users['nobody'])} []"


def test_doctor_reports_of_a_client_that_cannot_be_used() -> None:
    (check,) = doctor._ask_brokers({"nosuch": ["a"]})
    assert (check.id, check.state) == ("nosuch", "fail")
    assert "ModuleNotFoundError" in check.found


def test_the_forms_of_columns_are_their_numpy_types() -> None:
    import struct

    for table in TABLES.values():
        for column in table.columns:
            assert struct.calcsize("<" + column.form) == column.dtype.itemsize, column.name
    assert {table.name: table.dtype.itemsize for table in SENT} == ROW_BYTES


def test_a_packed_row_is_the_tables_row() -> None:
    peer = bytes(range(18))
    full = {
        "t_ns": 3,
        "system": "redis",
        "destination": b"\xff\0x",
        "partition": "p" * 99,
        "lag_messages": -5,
        "lag_s": 0.25,
        "exact": True,
        "failure": "refused",
        "reason": "g\u00fcltig",
        "pending": None,
        "peer": peer,
    }
    row, empty = np.frombuffer(pack([full, {}]), TABLE.dtype)
    assert empty.tobytes() == TABLE.empty(1)[0].tobytes()
    assert (row["t_ns"], row["system"], row["destination"], row["partition"]) == (3, b"redis", b"\xff\0x", b"p" * 16)
    assert (row["lag_messages"], row["lag_s"], row["exact"], row["pending"]) == (-5, 0.25, 1, NULL_I64)
    assert (row["failure"], row["reason"].decode(), row["peer"].tobytes()) == (
        TABLE.code("failure", "refused"),
        "g\u00fcltig",
        peer,
    )


@pytest.mark.parametrize(
    "row", [{"lagg": 1}, {"failure": "sulks"}, {"pending": "7"}, {"pending": 1 << 63}, {"lag_s": "x"}]
)
def test_what_is_no_row_is_refused(row: dict[str, object]) -> None:
    import struct

    with pytest.raises((ValueError, TypeError, struct.error)):
        pack([row])


def test_who_polls_needs_no_numpy() -> None:
    code = (
        "import sys; from agent.queues import catalogue, packing; catalogue.brokers(); print([m for m in ('numpy',"
        " 'asyncio', 'ssl') if m in sys.modules])"
    )
    out = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert out.stdout.strip() == "[]"
