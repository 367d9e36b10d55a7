"""Reports to tickscope what a Python rate limiter decides. Copy this file into your program, then

    import tickscope_limiters
    tickscope_limiters.watch(limiter)

``limiter``: a strategy of limits or limits.aio (3 to 5), slowapi's or Flask-Limiter's ``Limiter`` (after ``init_app``),
pyrate-limiter's ``Limiter`` (3, 4), aiolimiter's. Standard library only. The caller is never held up and gets no
exception that is not the limiter's own. Where there is no agent, decisions are counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import json
import os
import socket
import threading
import time
import warnings
from bisect import bisect_left
from collections.abc import Callable
from contextvars import ContextVar
from importlib import metadata
from typing import Any

INTAKE = "/run/tickscope/intake.seq.sock"
_PAUSE_S = 0.1  # between two attempts to find an agent
_ROUTES = 64  # with a name of their own: slowapi takes each path for one


class Reporter:
    """One connection a process, for all its threads. ``dropped``: decisions that could not be sent; the next that can
    reports how many.
    """

    def __init__(self, path: str = INTAKE) -> None:
        self.path = path
        self._begin()
        if os.name == "posix":
            os.register_at_fork(
                after_in_child=self._begin
            )  # the parent's connection, count and lock are not the child's

    def _begin(self) -> None:
        self.dropped, self._again_s = 0, 0.0
        self._sock: socket.socket | None = None
        self._lock = threading.RLock()  # a handler of signals may ask a limiter, too

    def report(self, limiter: str, result: str, **more: Any) -> None:
        """more: members, see docs/limiters-reference.md of tickscope; None is left out. Never blocks or raises."""
        with self._lock:
            try:
                self._send({k: v for k, v in more.items() if v is not None} | {"limiter": limiter, "result": result})
                self.dropped = 0
            except Exception:  # noqa: BLE001 - of no concern to who asked the limiter
                self.dropped += 1

    def _send(self, decision: dict[str, Any]) -> None:
        data = json.dumps(decision | {"dropped": self.dropped}, allow_nan=False).encode()
        for _ in range(2):  # an agent that was started again is found at once
            sock = self._sock or self._connected()
            try:
                sock.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                return
            except BlockingIOError:  # the agent is behind
                raise
            except OSError:
                self._sock = None
                sock.close()
        raise ConnectionError

    def _connected(self) -> socket.socket:
        now_s = time.monotonic()
        if now_s < self._again_s:
            raise ConnectionError
        self._again_s = now_s + _PAUSE_S
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            sock.setblocking(False)
            sock.connect(self.path)
        except OSError:
            sock.close()
            raise
        self._sock, self._again_s = sock, 0.0
        return sock


reporter = Reporter()


def watch(limiter: Any, name: str = "", remaining: bool | None = None) -> Any:
    """Has this limiter report its decisions from now on; returns it. name: how it is called in tickscope.

    remaining: whether limits' storage is asked what is left after each decision. By default only this process's memory
    is: any other answers by a round trip.
    """
    packages = {base.__module__.partition(".")[0] for base in type(limiter).__mro__}
    try:
        if packages & {"slowapi", "flask_limiter"}:
            for strategy in filter(None, (limiter._limiter, limiter._fallback_limiter)):
                _limits(strategy, name, remaining, routes=True)
        elif "pyrate_limiter" in packages:
            _pyrate(limiter, name)
        elif "aiolimiter" in packages:
            _aio(limiter, name)
        elif "limits" in packages:
            _limits(limiter, name, remaining, routes=False)
        else:
            warnings.warn(f"tickscope_limiters knows no {type(limiter)!r}", stacklevel=2)
    except Exception as error:  # noqa: BLE001 - a library that has changed
        warnings.warn(f"tickscope_limiters cannot watch {type(limiter)!r}: {error!r}", stacklevel=2)
    return limiter


class _Decision:
    """One that is being taken. seen: what pyrate-limiter's bucket factory was asked; whether aiolimiter had to wait."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.args, self.kwargs = args, kwargs
        self.seen: tuple[Any, ...] = ()
        self.wall_ns, self._began_ns = time.time_ns(), time.perf_counter_ns()

    def report(self, describe: _Describe, answer: Any, left: Any = None) -> None:
        """answer: the limiter's, or the exception in its place. left: what ``_watched`` was to ask. Raises nothing."""
        self.duration_ns = duration_ns = time.perf_counter_ns() - self._began_ns
        result = "allowed" if answer else "refused"
        if isinstance(answer, BaseException):
            result = "cancelled" if isinstance(answer, (asyncio.CancelledError, GeneratorExit)) else "error"
        more: dict[str, Any] = {"limiter": "unknown", "result": result, "duration_ns": duration_ns}
        with contextlib.suppress(Exception):  # of a library that has changed less is known
            more |= {"t_ns": time.clock_gettime_ns(time.CLOCK_BOOTTIME), "tid": threading.get_native_id()}
            more |= describe(self, answer, left)
        reporter.report(**more)


_Describe = Callable[[_Decision, Any, Any], dict[str, Any]]
_inside: ContextVar[_Decision | None] = ContextVar("_inside", default=None)  # a limiter's methods call one another


def _watched(method: Callable[..., Any], describe: _Describe, left: Callable[..., Any] | None = None) -> Any:
    """The method, with its answer reported; an awaitable where that is one. left: to be asked with the same arguments
    afterwards.
    """

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _inside.get() is not None:
            return method(*args, **kwargs)
        decision = _Decision(args, kwargs)
        token = _inside.set(decision)
        try:
            answer = method(*args, **kwargs)
        except BaseException as error:
            decision.report(describe, error)
            raise
        finally:
            _inside.reset(token)
        if inspect.isawaitable(answer):
            return later(decision, answer)
        decision.report(describe, answer, ask(args, kwargs))
        return answer

    async def later(decision: _Decision, awaitable: Any) -> Any:
        token = _inside.set(decision)
        try:
            answer = await awaitable
        except BaseException as error:
            decision.report(describe, error)
            raise
        finally:
            _inside.reset(token)
        stats = ask(decision.args, decision.kwargs)
        if inspect.isawaitable(stats):
            stats = (await asyncio.gather(stats, return_exceptions=True))[0]
        decision.report(describe, answer, stats)
        return answer

    def ask(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return left(*args, **kwargs) if left else None
        except Exception:  # noqa: BLE001 - then what is left is not known
            return None

    @functools.wraps(method)
    async def call_async(*args: Any, **kwargs: Any) -> Any:
        return await call(*args, **kwargs)

    return call_async if inspect.iscoroutinefunction(method) else call


def _limits(strategy: Any, name: str, remaining: bool | None, *, routes: bool) -> None:
    """routes: the last identifier says what is limited, those before it who."""
    local, version = type(strategy.storage).__name__ == "MemoryStorage", metadata.version("limits")
    known: set[str] = set()

    def describe(decision: _Decision, _: Any, left: Any) -> dict[str, Any]:
        item, *who = decision.args
        what = str(who.pop()) if routes and len(who) > 1 else ""
        if len(known) < _ROUTES:
            known.add(what)
        elif what not in known:
            what = "other routes"
        return {
            "limiter": f"{(name or what)[: 47 - len(str(item))]} {item}".strip(),
            "key": "/".join(map(str, who))[:500],
            "cost": decision.kwargs.get("cost", 1),
            "limit_per_s": item.amount / item.get_expiry(),
            "burst": item.amount,
            "window_ns": item.get_expiry() * 1_000_000_000,
            "remaining": left[1] if isinstance(left, tuple) else None,
            "program_wall_ns": decision.wall_ns if local else None,  # else it is the storage's clock, or both
            "library": "limits",
            "library_version": version,
        }

    def left(item: Any, *identifiers: str, **_: Any) -> Any:
        return strategy.get_window_stats(item, *identifiers)

    asks = local if remaining is None else remaining
    if not inspect.isfunction(vars(strategy).get("hit")):  # not watched yet
        strategy.hit = _watched(strategy.hit, describe, left if asks else None)


def _pyrate(limiter: Any, name: str) -> None:
    factory, version = limiter.bucket_factory, metadata.version("pyrate-limiter")
    get = factory.get

    def got(item: Any) -> Any:
        bucket, decision = get(item), _inside.get()
        if decision is not None:
            decision.seen = item, item.timestamp, bucket
        return bucket

    def describe(decision: _Decision, answer: Any, _: Any) -> dict[str, Any]:
        key = decision.kwargs.get("name", (*decision.args, "pyrate")[0])
        cost = decision.kwargs.get("weight", decision.args[1] if len(decision.args) > 1 else 1)
        reported = {"limiter": name or "pyrate", "library": "pyrate-limiter", "library_version": version}
        reported |= {"key": str(key)[:500], "cost": cost}
        if type(answer).__name__ in ("BucketFullException", "LimiterDelayException", "TimeoutError"):
            reported["result"] = "refused"
        if decision.seen:
            item, first_ms, bucket = decision.seen
            if answer is True and item.timestamp > first_ms:  # it slept, and asked again
                reported |= {"result": "delayed", "wait_ns": (item.timestamp - first_ms) * 1_000_000}
            reported |= _tightest(item, bucket)
        return reported

    if not inspect.isfunction(vars(factory).get("get")):  # not watched yet
        factory.get = got
        for method in (
            "try_acquire",
            "try_acquire_async",
            "_try_acquire",
        ):  # the last is what version 4's decorator calls
            if found := getattr(limiter, method, None):
                setattr(limiter, method, _watched(found, describe))


def _tightest(item: Any, bucket: Any) -> dict[str, Any]:
    """Of the bucket's rates the one with the least left; what is left only of a bucket in this process's memory."""
    entries, rates = getattr(bucket, "items", None), getattr(bucket, "rates", ())

    def left(rate: Any) -> int:
        if not isinstance(entries, list):
            return 0
        return (
            int(rate.limit)
            - len(entries)
            + bisect_left(entries, item.timestamp - int(rate.interval), key=lambda e: e.timestamp)
        )

    if not rates:
        return {}
    rate = min(rates, key=left)
    return {
        "limit_per_s": rate.limit * 1000 / int(rate.interval),
        "burst": rate.limit,
        "window_ns": int(rate.interval) * 1_000_000,
        "remaining": left(rate) if isinstance(entries, list) else None,
    }


def _aio(limiter: Any, name: str) -> None:
    kind, version = type(limiter), metadata.version("aiolimiter")

    def has_capacity(self: Any, amount: float = 1) -> bool:
        there = bool(kind.has_capacity(self, amount))
        if not there and (decision := _inside.get()):
            decision.seen = (amount,)
        return there

    def describe(decision: _Decision, answer: Any, _: Any) -> dict[str, Any]:
        reported = {"limiter": name or "aiolimiter", "library": "aiolimiter", "library_version": version}
        reported |= {"limit_per_s": limiter.max_rate / limiter.time_period, "burst": limiter.max_rate}
        reported |= {"cost": decision.kwargs.get("amount", (*decision.args[1:], 1)[0])}
        if answer is None:
            reported |= (
                {"result": "delayed", "wait_ns": decision.duration_ns} if decision.seen else {"result": "allowed"}
            )
            reported |= {"remaining": limiter.max_rate - limiter._level}
        return reported

    if not hasattr(kind, "_tickscope"):  # not watched yet; its slots take no method of one limiter alone
        body = {"__slots__": (), "_tickscope": True, "has_capacity": has_capacity}
        limiter.__class__ = type(kind.__name__, (kind,), body | {"acquire": _watched(kind.acquire, describe)})
