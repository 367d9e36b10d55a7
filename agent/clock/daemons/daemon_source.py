"""Time daemons and servers as a source: queries them on a schedule and returns rows. Never blocks. Sends nothing off
this host unless servers are configured.

All sockets are in one epoll instance, because each query opens a new socket. The agent's loop waits on the epoll
descriptor.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from agent.batch import Batch
from agent.clock.daemons import chrony, ntpd, present, sntp, timesyncd
from agent.clock.daemons.check import Consistency
from agent.clock.daemons.exchange import Exchange
from agent.clock.daemons.report import DaemonReport, Failed, Talk, to_rows
from agent.clock.daemons.settings import MOST_S, NtpSettings, split
from agent.contracts import Failing, Pending, Readable, Stating

TIMEOUT_NS = 1_000_000_000
_SECOND_NS = 1_000_000_000
_CHECK_NS, _RESOLVE_NS = 60 * _SECOND_NS, 3600 * _SECOND_NS
_SILENT = {
    "chrony": "is there `cmdport 0`, or another cmdport, in chrony.conf? set ntp.chrony",
    "ntpd": "mode 6 queries are turned off (restrict noquery), or it is OpenNTPD, which has none",
}


@dataclass
class TimeServer:
    """A daemon or server that is queried. where: (family, (address, port)), None while its name is being resolved.
    report: its last system or server row.
    """

    daemon: str
    name: str
    talk: Callable[[], Talk]
    interval_ns: int
    host: tuple[str, int]
    where: tuple[int, tuple[str, int]] | None = None
    resolved_ns: int = 0
    due_ns: int = 0
    exchange: Exchange | None = None
    report: DaemonReport | None = None
    answers: int = 0
    failed: int = 0
    stopped: bool = False
    ignored: Counter[str] = field(default_factory=Counter)


class TimeDaemons(Stating, Failing, Readable, Pending):
    """Implements ``agent.contracts.Source``: rows of ``clock_daemon``.

    to_boot: Unix ns to CLOCK_BOOTTIME ns, for times that daemons give by the wall clock. running: daemons that run
    here, name -> pid. A daemon that neither runs nor answers has no rows.
    """

    name = "time daemons"

    def __init__(
        self,
        config: NtpSettings,
        to_boot: Callable[[int], int],
        running: Callable[[], dict[str, int]] = present.running,
    ) -> None:
        self._to_boot, self._running = to_boot, running
        self._daemon_ns = round(config.daemon_interval_s * _SECOND_NS)
        self._pids: dict[str, int] = {}
        self._consistency = Consistency()
        self._results: deque[Callable[[], object]] = deque()  # results of the threads below, taken by drain
        self._epoll = select.epoll()
        self._by_fd: dict[int, TimeServer] = {}
        self._checked_at_ns = self._stamp_ns = self._next_ns = 0
        self._timesyncd: DaemonReport | None = None
        self._problem: dict[str, str] = {}
        self._targets = [
            TimeServer(daemon, f"{daemon} {where}", talk, self._daemon_ns, split(where, port))
            for daemon, where, port, talk in (
                ("chrony", config.chrony, 323, chrony.talk),
                ("ntpd", config.ntpd, 123, ntpd.talk),
            )
            if where
        ]
        self._targets += [
            TimeServer(
                "sntp",
                f"sntp {server}",
                partial(sntp.talk, server),
                round(config.interval_s * _SECOND_NS),
                split(server, 123),
            )
            for server in config.servers
        ]

    def fds(self) -> list[int]:
        return [self._epoll.fileno()]

    def pending(self, now_ns: int) -> bool:
        """Whether an answer from beside the loop is there, or a daemon is to be asked."""
        return bool(self._results) or now_ns >= self._next_ns

    def drain(self, now_ns: int) -> Iterable[Batch]:
        if not self._by_fd and not self._results and now_ns < self._next_ns:
            return ()
        while self._results:
            self._results.popleft()()
        for fd, _ in self._epoll.poll(0):
            exchange = self._by_fd[fd].exchange
            assert exchange is not None
            exchange.read()
        reports: list[DaemonReport] = []
        for target in list(self._by_fd.values()):
            reports += self._finish(target, now_ns)
        if now_ns - self._checked_at_ns >= _CHECK_NS or not self._checked_at_ns:
            self._checked_at_ns = now_ns
            self._aside("processes", self._running, self._found)
        if "timesyncd" in self._pids and now_ns - self._stamp_ns >= self._daemon_ns:
            self._stamp_ns = now_ns
            self._timesyncd = timesyncd.read_state()
            reports.append(self._timesyncd)
        for target in self._targets:
            if target.exchange is None and not target.stopped and now_ns >= target.due_ns:
                reports += self._begin(target, now_ns)
        waits = [t.due_ns for t in self._targets if not t.stopped] + [self._checked_at_ns + _CHECK_NS]
        self._next_ns = min([*waits, self._stamp_ns + self._daemon_ns] if "timesyncd" in self._pids else waits)
        reports += [check for report in reports for check in self._consistency.feed(report)]
        return [Batch("clock_daemon", to_rows(reports, self._to_boot))] if reports else ()

    @property
    def query_running(self) -> bool:
        """Whether a query is under way."""
        return bool(self._by_fd)

    def _begin(self, target: TimeServer, now_ns: int) -> list[DaemonReport]:
        """Sends a query. Returns the reports that are known at once, such as a reason why it cannot be sent."""
        target.due_ns = now_ns + target.interval_ns
        if target.where is None or (target.resolved_ns and now_ns - target.resolved_ns >= _RESOLVE_NS):
            self._resolve(target, now_ns)
        if target.where is None:
            why = self._problem.get(target.name)
            return [] if why is None else self._failure(target, Failed("error", f"cannot be found: {why}"), now_ns)
        family, where = target.where
        target.exchange = Exchange(target.talk(), family, where, TIMEOUT_NS)
        fd = target.exchange.sock.fileno()
        self._by_fd[fd] = target
        self._epoll.register(fd, select.EPOLLIN)
        return self._finish(target, now_ns)

    def _resolve(self, target: TimeServer, now_ns: int) -> None:
        """Parses an address at once. Resolves a name on a thread, since that may block for many seconds."""
        host, port = target.host
        try:
            family, *_, where = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST)[0]
            target.where = int(family), (str(where[0]), int(where[1]))
        except socket.gaierror:
            target.resolved_ns = now_ns

            def found(infos: list[Any]) -> None:
                family, *_, where = infos[0]
                target.where = int(family), (str(where[0]), int(where[1]))
                target.due_ns = 0

            self._aside(target.name, partial(socket.getaddrinfo, host, port, type=socket.SOCK_DGRAM), found)

    def _aside(self, name: str, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Runs ``work`` on a new thread. At the next drain, the agent's thread calls ``then`` with the result."""

        def run() -> None:
            try:
                result = work()
            except OSError as error:
                self._results.append(partial(self._problem.__setitem__, name, f"{error.strerror or error}"))
            else:
                self._results += (partial(self._problem.pop, name, None), partial(then, result))

        threading.Thread(target=run, name=name, daemon=True).start()

    def _found(self, pids: dict[str, int]) -> None:
        self._pids = pids

    def _finish(self, target: TimeServer, now_ns: int) -> list[DaemonReport]:
        """The reports of an exchange, if it has ended."""
        exchange = target.exchange
        assert exchange is not None
        exchange.expire(now_ns)
        if exchange.done is None:
            return []
        fd = exchange.sock.fileno()
        del self._by_fd[fd]
        self._epoll.unregister(fd)
        exchange.close()
        target.exchange = None
        target.ignored.update({why: n for why, n in exchange.ignored.items() if why != "part of an answer"})
        if isinstance(exchange.done, Failed):
            return self._failure(target, exchange.done, now_ns)
        target.answers += 1
        target.report = exchange.done[0]
        return exchange.done

    def _failure(self, target: TimeServer, failed: Failed, now_ns: int) -> list[DaemonReport]:
        pid = self._pids.get(target.daemon)
        if target.daemon != "sntp" and pid is None and not target.answers:
            return []  # no such daemon here
        target.failed += 1
        reason = str(failed)
        if failed.stop == "deny":
            target.stopped = True
            reason += "; not asked again until tickscope is restarted"
        elif failed.stop == "rate":
            target.interval_ns = min(2 * target.interval_ns, round(MOST_S) * _SECOND_NS)
            target.due_ns = now_ns + target.interval_ns
            reason += f"; asked every {target.interval_ns / 1e9:g} s from now on"
        elif pid is not None and failed.state in ("silent", "refused"):
            reason = f"it runs (pid {pid}), but {reason}: {_SILENT[target.daemon]}"
        target.report = DaemonReport(
            target.daemon,
            "source" if target.daemon == "sntp" else "system",
            failed.state,
            t_ns=now_ns,
            source=target.name.partition(" ")[2],
            reason=reason,
        )
        return [target.report]

    def failures(self) -> dict[str, str]:
        """Daemons and servers whose last query failed, and why."""
        bad = {
            t.name: t.report.reason
            for t in self._targets
            if t.report is not None and t.report.state in ("silent", "refused", "error")
        }
        return {**{name: f"cannot be found: {why}" for name, why in self._problem.items()}, **bad}

    def state(self) -> list[dict[str, object]]:
        """For ``status``: each daemon and server that has answered, its last report, and its number of answers."""
        changed = [
            {
                **_brief(t.report),
                "where": t.name.partition(" ")[2],
                "answers": t.answers,
                "failed": t.failed,
                "ignored": dict(t.ignored),
            }
            for t in self._targets
            if t.report is not None
        ]
        return changed + ([_brief(self._timesyncd)] if self._timesyncd is not None else [])

    def synchronised(self) -> list[str]:
        """The daemons of this host whose last report says that they are synchronised."""
        report = [t.report for t in self._targets] + [self._timesyncd]
        return [b.daemon for b in report if b is not None and (b.kind, b.state) == ("system", "synchronised")]

    def close(self) -> None:
        for target in self._by_fd.values():
            assert target.exchange is not None
            target.exchange.close()
        self._epoll.close()


def synchronised_now(config: NtpSettings) -> list[str]:
    """Queries the daemons of this host now; returns those that report synchronised. Waits for a second at most."""
    source = TimeDaemons(replace(config, servers=()), to_boot=lambda wall_ns: wall_ns, running=dict)
    try:
        boot_ns = partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)
        end_ns = boot_ns() + TIMEOUT_NS
        while list(source.drain(boot_ns())) or (source.query_running and boot_ns() < end_ns):
            select.select(source.fds(), (), (), 0.05)
        return source.synchronised()
    finally:
        source.close()


def _brief(b: DaemonReport) -> dict[str, object]:
    names = ("daemon", "state", "source", "t_ns", "offset_ns", "distance_ns", "stratum", "leap", "freq_ppb", "reason")
    return {name: None if getattr(b, name) == "" else getattr(b, name) for name in names}
