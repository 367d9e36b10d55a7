"""The adapter for Python's limiters, with the real libraries: each decision is reported as it was, and nobody is held
up, whatever the agent does.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from math import isnan
from pathlib import Path
from typing import Any

import aiolimiter
import limits
import limits.aio
import pyrate_limiter
import pytest
from slowapi import Limiter as SlowApi
from slowapi.errors import RateLimitExceeded
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from agent.limiters.catalogue import look_up
from tests.patience import PATIENCE
from tests.unit.adapters import ADAPTERS, Reported, columns, hashed
from tests.unit.test_intake_connections import flood

FIVE = limits.parse("5/minute")


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("a")
    for part in (path, *path.parents):
        if part != Path(tempfile.gettempdir()) and part.is_relative_to(tempfile.gettempdir()):
            part.chmod(0o755)  # the user nobody connects, too
    return path


@pytest.fixture
def reported(place: Path) -> Iterator[Reported]:
    it = Reported(place)
    yield it
    it.close()


@pytest.fixture
def adapter(place: Path) -> Any:
    """As who copied it imports it, telling our intake."""
    spec = importlib.util.spec_from_file_location("tickscope_limiters", ADAPTERS / "tickscope_limiters.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.reporter.path = str(place / "intake.seq.sock")
    return module


def unhurt(work: Callable[[], object]) -> None:
    """Ends by itself: what waits without end would stay in its thread."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(60 * PATIENCE)
    assert not thread.is_alive(), "it waits"


@pytest.mark.parametrize("strategy", limits.strategies.STRATEGIES.values())
def test_limits(adapter: Any, reported: Reported, strategy: Any) -> None:
    limiter = adapter.watch(adapter.watch(strategy(limits.storage.MemoryStorage()), "api"))  # twice is once
    before_ns = time.time_ns()
    answers = [limiter.hit(FIVE, "customer", "17") for _ in range(11)]
    rows = reported.until(11)
    assert answers == [True] * 5 + [False] * 6
    assert reported.results() == ["allowed" if a else "refused" for a in answers]
    assert rows["remaining"].tolist() == [4, 3, 2, 1, 0] + [0] * 6
    assert (before_ns <= rows["program_wall_ns"]).all()
    assert (rows["program_wall_ns"] <= time.time_ns()).all()
    assert columns(rows, "limiter_id", "key", "cost", "limit_per_s", "burst", "window_ns", "pid", "tid") == [
        (b"api 5 per 1 minute", hashed("customer/17"), 1, 5 / 60, 5, 60 * 10**9, os.getpid(), threading.get_native_id())
    ]
    assert columns(rows, "library", "library_version") == [(b"limits", metadata.version("limits").encode())]
    assert not limiter.hit(FIVE, "customer", "18", cost=7)
    assert columns(reported.until(12)[-1:], "cost", "key") == [(7, hashed("customer/18"))]


def test_limits_of_asyncio(adapter: Any, reported: Reported) -> None:
    limiter = adapter.watch(limits.aio.strategies.MovingWindowRateLimiter(limits.aio.storage.MemoryStorage()))

    async def ask() -> list[bool]:
        return [await limiter.hit(FIVE, "x") for _ in range(7)]

    assert asyncio.run(ask()) == [True] * 5 + [False] * 2
    assert reported.until(7)["remaining"].tolist() == [4, 3, 2, 1, 0, 0, 0]
    assert reported.results() == ["allowed"] * 5 + ["refused"] * 2


def test_a_storage_elsewhere_is_not_asked_twice_and_its_failure_is_the_callers(
    adapter: Any, reported: Reported
) -> None:
    class Far(limits.storage.MemoryStorage):
        asked, STORAGE_SCHEME = 0, ["far"]

        def get_expiry(self, key: str) -> float:
            self.asked += 1
            return super().get_expiry(key)

        def incr(self, *args: Any, **kwargs: Any) -> int:
            if self.asked < 0:
                raise ConnectionResetError("far away")
            return super().incr(*args, **kwargs)

    storage = Far()
    limiter = adapter.watch(limits.strategies.FixedWindowRateLimiter(storage))
    assert limiter.hit(FIVE, "x")
    assert (storage.asked, isnan(reported.until(1)["remaining"][0])) == (0, True)
    storage.asked = -1
    with pytest.raises(ConnectionResetError, match="far away"):
        limiter.hit(FIVE, "x")
    reported.until(2)
    assert reported.results() == ["allowed", "error"]
    storage.asked = 0
    adapter.watch(asking := limits.strategies.FixedWindowRateLimiter(storage), remaining=True)
    assert asking.hit(FIVE, "x")
    assert (storage.asked, reported.until(3)["remaining"].tolist()[2]) == (1, 3)


def test_pyrate_limiter(adapter: Any, reported: Reported) -> None:
    rates = [pyrate_limiter.Rate(3, 100), pyrate_limiter.Rate(5, 60_000)]
    limiter = adapter.watch(adapter.watch(pyrate_limiter.Limiter(rates), "mail"))
    assert [limiter.try_acquire("bob") for _ in range(4)] == [True] * 4  # the fourth is held for some 100 ms
    decorated = limiter.as_decorator(name="ann")
    assert decorated(lambda: "done")() == "done"
    assert [limiter.try_acquire("eve", 2, blocking=False), limiter.try_acquire("eve", timeout=0.1)] == [False, False]
    assert asyncio.run(limiter.try_acquire_async("eve", blocking=False)) is False
    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(asyncio.wait_for(limiter.try_acquire_async("eve"), 0.05))
    rows = reported.until(9)
    assert reported.results() == ["allowed"] * 3 + ["delayed", "allowed"] + ["refused"] * 3 + ["cancelled"]
    assert rows["remaining"].tolist()[:3] == [2, 1, 0]
    assert rows["remaining"].tolist()[4:] == [0] * 5
    assert rows["key"].tolist() == [hashed(key) for key in ["bob"] * 4 + ["ann"] + ["eve"] * 4]
    assert rows["cost"].tolist() == [1] * 5 + [2] + [1] * 3
    assert rows["burst"].tolist()[:3] == [3, 3, 3]
    assert columns(rows[4:], "limit_per_s", "burst", "window_ns") == [(5 / 60, 5, 60 * 10**9)]
    assert 50_000_000 <= rows["wait_ns"][3] <= rows["duration_ns"][3]
    assert columns(rows, "limiter_id", "library") == [(b"mail", b"pyrate-limiter")]


def test_aiolimiter(adapter: Any, reported: Reported) -> None:
    async def ask() -> None:
        limiter = adapter.watch(adapter.watch(aiolimiter.AsyncLimiter(4, 1), "fetch"))
        other = aiolimiter.AsyncLimiter(1, 60)
        async with limiter, other:
            assert isinstance(limiter, aiolimiter.AsyncLimiter)
        await asyncio.gather(limiter.acquire(2), limiter.acquire(amount=1))
        await limiter.acquire(2)  # two of four have to leak: half a second
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(limiter.acquire(4), 0.05)
        with pytest.raises(ValueError, match="maximum capacity"):
            await limiter.acquire(5)
        assert not limiter.has_capacity(4)

    asyncio.run(ask())
    rows = reported.until(6)
    assert reported.results() == ["allowed"] * 3 + ["delayed", "cancelled", "error"]
    assert rows["cost"].tolist() == [1, 2, 1, 2, 4, 5]
    assert 400_000_000 <= rows["wait_ns"][3] <= rows["duration_ns"][3]
    assert [round(left) for left in rows["remaining"][:3]] == [3, 1, 0]
    assert columns(rows, "limiter_id", "library", "limit_per_s", "burst") == [(b"fetch", b"aiolimiter", 4, 4)]
    check = look_up("aiolimiter", "1.3.0")
    assert check is not None
    assert (check.back, check.forward) == ("none", "none")


async def asked(app: Starlette, path: str, client: str) -> int:
    """The status of a GET. The server's side of ASGI 3."""
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "headers": [],
    }
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    whole = {
        **scope,
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "client": (client, 1),
        "server": ("shop", 80),
    }
    await app(whole, receive, send)
    return int(sent[0]["status"])


def test_slowapi(adapter: Any, reported: Reported) -> None:
    limiter = SlowApi(key_func=lambda request: request.client.host)
    adapter.watch(limiter)

    @limiter.limit("3/minute")  # type: ignore[untyped-decorator,unused-ignore]
    async def pay(request: Request) -> PlainTextResponse:
        return PlainTextResponse("paid")

    refuse = {RateLimitExceeded: lambda request, error: PlainTextResponse("later", 429)}
    app = Starlette(routes=[Route("/pay", pay), Route("/pay/{n}", pay)], exception_handlers=refuse)
    app.state.limiter = limiter
    assert [asyncio.run(asked(app, "/pay", "192.0.2.7")) for _ in range(5)] == [200] * 3 + [429] * 2
    rows = reported.until(5)
    assert reported.results() == ["allowed"] * 3 + ["refused"] * 2
    assert rows["remaining"].tolist() == [2, 1, 0, 0, 0]
    assert columns(rows, "limiter_id", "key", "burst") == [(b"/pay 3 per 1 minute", hashed("192.0.2.7"), 3)]
    for n in range(101):  # by default, slowapi has a limit for each path
        asyncio.run(asked(app, f"/pay/{n}", "192.0.2.7"))
    names = {name for (name,) in columns(reported.until(106), "limiter_id")}
    assert len(names) == 64 + 1
    assert b"other routes 3 per 1 minute" in names


def test_nobody_is_held_up_and_what_is_not_reported_is_counted(adapter: Any, place: Path) -> None:
    limiter = adapter.watch(limits.strategies.FixedWindowRateLimiter(limits.storage.MemoryStorage()))

    def ask(count: int) -> None:
        unhurt(lambda: [limiter.hit(FIVE, "x") for _ in range(count)])

    ask(11)  # no agent
    assert adapter.reporter.dropped == 11
    reported = Reported(place)
    time.sleep(2 * adapter._PAUSE_S)
    ask(3001)  # an agent that is stopped, or behind
    assert adapter.reporter.dropped > 0
    reported.read()
    ask(1)
    reported.read()
    assert (len(reported.rows) + reported.dropped(), adapter.reporter.dropped) == (11 + 3001 + 1, 0)
    reported.close()
    ask(5)
    assert adapter.reporter.dropped == 5
    again = Reported(place)
    time.sleep(2 * adapter._PAUSE_S)
    ask(2)
    assert (len(again.until(2)), again.dropped()) == (2, 5)
    again.close()  # another takes its place before it is missed: nothing is lost
    third = Reported(place)
    ask(1)
    assert (len(third.until(1)), third.dropped(), adapter.reporter.dropped) == (1, 0, 0)
    third.close()


def test_a_full_backlog_does_not_hold_it_up_either(adapter: Any, place: Path) -> None:
    with contextlib.ExitStack() as stack:
        listener, *waiting = [
            stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) for _ in range(3)
        ]
        listener.bind(str(place / "intake.seq.sock"))
        listener.listen(1)
        for sock in waiting:
            sock.connect(str(place / "intake.seq.sock"))
        unhurt(lambda: [adapter.reporter.report("x", "allowed") for _ in range(101)])
    assert adapter.reporter.dropped == 101


def test_threads_and_children_report_each_decision_once(adapter: Any, reported: Reported) -> None:
    limiter = adapter.watch(limits.strategies.FixedWindowRateLimiter(limits.storage.MemoryStorage()))
    limiter.hit(FIVE, "x")
    threads = [threading.Thread(target=lambda: [limiter.hit(FIVE, "x") for _ in range(7)]) for _ in range(11)]
    for thread in threads:
        thread.start()
    assert len(columns(reported.until(1 + 11 * 7), "tid")) == 1 + 11
    for thread in threads:
        thread.join()
    with adapter.reporter._lock:  # as if another thread was just telling
        child = os.fork()
        if child == 0:
            adapter.reporter.report("child", "allowed", dropped=0)
            os._exit(0)
    end = time.monotonic() + 60 * PATIENCE
    while (done := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < end:
        time.sleep(0.01)
    assert done == (child, 0)
    limiter.hit(FIVE, "x")
    rows = reported.until(1 + 11 * 7 + 2)
    last = columns(rows[-2:], "pid", "limiter_id")  # of two connections: in any order
    assert sorted(last) == sorted([(child, b"child"), (os.getpid(), b"5 per 1 minute")])
    assert reported.dropped() == 0


def test_what_cannot_be_reported_is_no_exception(adapter: Any, reported: Reported) -> None:
    limiter = adapter.watch(limits.strategies.FixedWindowRateLimiter(limits.storage.MemoryStorage()))
    for key in ("\udcff", "x" * 100_000, "\0", "\U0001f600" * 9000):
        assert limiter.hit(FIVE, key)
    reported.until(4)
    adapter.reporter.report("x", "allowed", cost=float("nan"))
    adapter.reporter.report("x", "allowed", key=object())
    assert adapter.reporter.dropped == 2
    with pytest.raises(TypeError):
        limiter.hit()
    with pytest.warns(UserWarning, match="knows no"):
        assert adapter.watch("a text") == "a text"
    reported.until(5)
    assert reported.source.losses() == {"malformed": 0, "dropped": 2}


@pytest.mark.skipif(os.geteuid() != 0, reason="the flood is another user's")
def test_anothers_flood_keeps_none_of_it_out(adapter: Any, reported: Reported, place: Path) -> None:
    limiter = adapter.watch(limits.strategies.FixedWindowRateLimiter(limits.storage.MemoryStorage()), "mine")
    with flood(place / "intake.seq.sock", 3) as sent:
        for _ in range(13):
            assert limiter.hit(FIVE, "x") or True
        rows = reported.until(sent + 13)
    assert sent > 13
    assert int((rows["limiter_id"] == b"mine 5 per 1 minute").sum()) == 13


def test_it_needs_nothing_but_the_standard_library() -> None:
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['limits', 'pyrate_limiter', 'slowapi'])); import"
        " tickscope_limiters"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        cwd=ADAPTERS,
        env={"PYTHONPATH": str(ADAPTERS), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 0
