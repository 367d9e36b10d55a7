"""The hook as a process of its own, with real programs and servers, good and bad. No clock is stepped."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.clock import hooks
from agent.clock.notices import NoticeSource
from agent.clock.settings import HookSettings
from agent.clock.subscribers import Subscribers
from tests.lab import sockets
from tests.patience import until

pytestmark = pytest.mark.usefixtures("own_clock")

NOBODY = 65534


class Rig:
    """A notice socket with hooks on it."""

    def __init__(self, directory: Path, config: HookSettings) -> None:
        path = directory / "notices.sock"
        self.listener = sockets.notices(path)
        run_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        self.hook = hooks.start(config, run_fd, NOBODY, NOBODY)
        os.close(run_fd)
        self.reports, self._report = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.reports.setblocking(False)
        self._stop, self._until = socket.socketpair()
        self.subscribers = Subscribers(self.listener, self._report)
        self.thread = threading.Thread(target=self.subscribers.serve, args=(self._until.fileno(),))
        self.thread.start()
        watch = SimpleNamespace(reports=self.reports, alive=True, child=SimpleNamespace(state=lambda: "running"))
        self.source = NoticeSource(watch, self.hook)  # type: ignore[arg-type]
        self.wait(lambda s: s["subscribers"] == 1)
        self.listed = 0

    def step(self) -> None:
        self.listed += 1
        self.subscribers.send_notice({"v": 1, "kind": "step", "size_ns": -self.listed}, 10**12 + self.listed)

    def wait(self, enough: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        until(lambda: enough(self.source.state()), why=self.source.state)
        return self.source.state()

    def counts(self, **wanted: int) -> dict[str, Any]:
        return dict(self.wait(lambda s: all(s["hooks"]["exec"][k] >= v for k, v in wanted.items()))["hooks"]["exec"])

    def close(self) -> None:
        self.source.close()
        self._stop.close()
        self.thread.join()
        for each in (self.listener, self._report, self._until):
            each.close()


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that others can enter, which pytest's own is not."""
    with tempfile.TemporaryDirectory(prefix="tickscope-hooks-") as made:
        Path(made).chmod(0o777)
        yield Path(made)


@pytest.fixture
def rig(place: Path) -> Iterator[Callable[[HookSettings], Rig]]:
    made: list[Rig] = []

    def begin(config: HookSettings) -> Rig:
        made.append(Rig(place, config))
        return made[-1]

    yield begin
    for each in made:
        each.close()


def processes(words: str) -> list[str]:
    out = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = entry.read_bytes().replace(b"\0", b" ").decode()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if words in text:
            out.append(text)
    return out


def test_a_command_gets_each_notice_unprivileged(rig: Callable[[HookSettings], Rig], place: Path) -> None:
    out = place / "out"
    out.touch()
    out.chmod(0o666)
    made = rig(
        HookSettings(
            exec=(
                "/bin/sh",
                "-c",
                f"cat >>{out}; id -u >>{out}; grep -E 'CapEff|NoNewPrivs' /proc/self/status >>{out}; pwd >>{out}",
            )
        )
    )
    for i in range(3):
        made.step()
        made.counts(delivered=i + 1)
    lines = out.read_text().splitlines()
    assert [json.loads(lines[i])["id"] for i in (0, 5, 10)] == [1, 2, 3]
    assert lines[1:5] == [str(NOBODY), "CapEff:\t0000000000000000", "NoNewPrivs:\t1", "/"]
    assert made.source.state()["pending"] == 0


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("/bin/false",), "ended with 1"),
        (("/nonexistent/hook",), "cannot run /nonexistent/hook: No such file"),
        (("/bin/sh", "-c", "kill -9 $$"), "ended with -9"),
    ],
)
def test_a_command_that_fails_is_counted_with_the_reason(
    rig: Callable[[HookSettings], Rig], command: tuple[str, ...], words: str
) -> None:
    made = rig(HookSettings(exec=command))
    made.step()
    made.step()
    state = made.counts(failed=2)
    assert words in state["error"]
    assert state["delivered"] == 0
    (row,) = [b.rows for b in made.source.drain(10**9) if b.rows["channel"][0] == 1]
    assert row["failed"][0] == 2
    assert words in row["reason"][0].decode()


def test_a_command_that_hangs_is_killed_with_all_it_started(rig: Callable[[HookSettings], Rig]) -> None:
    made = rig(HookSettings(exec=("/bin/sh", "-c", "sleep 9973 & sleep 9973"), timeout_s=0.3))
    made.step()
    assert "did not end within 0.3 s" in made.counts(failed=1)["error"]
    made.wait(lambda _: not processes("sleep 9973"))


def test_a_backlog_is_cut_to_the_newest_and_counted(rig: Callable[[HookSettings], Rig], place: Path) -> None:
    out = place / "out"
    out.touch()
    out.chmod(0o666)
    made = rig(HookSettings(exec=("/bin/sh", "-c", f"cat >>{out}; sleep 0.4"), timeout_s=5))
    made.step()
    made.wait(lambda _: bool(out.read_text()))
    for _ in range(hooks.QUEUE + 5):
        made.step()
    state = made.counts(dropped=5)
    assert state["dropped"] == 5
    made.counts(delivered=2)
    assert [json.loads(text)["id"] for text in out.read_text().splitlines()][:2] == [1, 7]


def test_the_agents_end_ends_a_hook_in_the_middle(rig: Callable[[HookSettings], Rig], place: Path) -> None:
    made = rig(HookSettings(exec=("/bin/sleep", "9967"), timeout_s=60))
    made.step()
    made.wait(lambda _: bool(processes("sleep 9967")))
    made.source.close()
    until(lambda: not processes("sleep 9967"))


def test_the_command_of_the_docs_posts_and_publishes(rig: Callable[[HookSettings], Rig], place: Path) -> None:
    """The script in docs/clock-notices.md, with the ports of a web server and a Redis of the test's own."""
    got: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    page = (Path(__file__).parents[2] / "docs/clock-notices.md").read_text()
    script, path = page[page.index("#!/bin/sh") :].partition("```")[0], place / "redis.sock"
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as web:
        threading.Thread(target=web.serve_forever).start()
        redis = subprocess.Popen(
            ["redis-server", *f"--port 0 --unixsocket {path} --unixsocketperm 777 --dir {place} --save".split(), ""],
            stdout=subprocess.DEVNULL,
        )
        try:
            until(lambda: subprocess.run(["redis-cli", "-s", path, "ping"], capture_output=True).stdout == b"PONG\n")
            listener = subprocess.Popen(
                ["redis-cli", "-s", path, "subscribe", "tickscope:clock"], stdout=subprocess.PIPE, text=True
            )
            assert listener.stdout is not None
            assert [listener.stdout.readline().strip() for _ in range(3)] == ["subscribe", "tickscope:clock", "1"]
            command = place / "on-jump"
            command.write_text(
                script.replace("8080", str(web.server_port)).replace("redis-cli", f"redis-cli -s {path}")
            )
            command.chmod(0o755)
            made = rig(HookSettings(exec=(str(command),), timeout_s=20))
            made.step()
            made.counts(delivered=1)
            assert [listener.stdout.readline().strip() for _ in range(2)] == ["message", "tickscope:clock"]
            assert json.loads(listener.stdout.readline()) == got[0] == {"v": 1, "kind": "step", "size_ns": -1, "id": 1}
        finally:
            web.shutdown()
            redis.terminate()
            redis.wait()
    listener.communicate()


def test_a_hook_that_was_killed_is_shown(rig: Callable[[HookSettings], Rig]) -> None:
    made = rig(HookSettings(exec=("/bin/true",)))
    assert made.hook is not None
    os.kill(made.hook.pid, 9)
    made.wait(lambda s: s["hooks"]["exec"]["state"] == "gone")
    assert "notices exec" in made.source.failures()
    assert made.source.processes() == []
