"""Compares what time daemons and servers report with each other, through MONOTONIC_RAW. Pure.

A report says that UTC - REALTIME is offset +- distance. Together with REALTIME - MONOTONIC_RAW at the same instant this
is a claim about UTC - RAW, which steps and slews do not move. It changes only with the oscillator's error: the daemon's
frequency +- its skew. So claims at different times can be compared. If two claims differ by more than their bounds and
the oscillator's error allow, one of them is wrong: another program moved the clock, a server misled the daemon, or the
hardware jumped.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from agent.clock.daemons.report import DaemonReport

WINDOW_NS = 900_000_000_000
KEPT = 128
#: Oscillator error beyond the daemon's skew. The skew is a statistical bound that does not cover a change of
#: temperature.
WANDER_PPB = 1_000
#: For a daemon that reports no skew: RFC 5905's PHI, its tolerance for any clock.
PHI_PPB = 15_000
_SUSPENDED_NS = 1_000_000


@dataclass(frozen=True)
class Claim:
    """UTC - RAW is utc_raw_ns +- bound_ns at t_ns. phase_ns, slack_ns: the accumulated frequency and uncertainty of the
    daemon since its first claim.
    """

    t_ns: int
    utc_raw_ns: int
    bound_ns: int
    phase_ns: int
    slack_ns: int


class Consistency:
    """The claims of daemons and servers. Feed reports in order of time; each call returns comparisons (kind check,
    state agree or disagree).

    Agreement is reported when it begins, disagreement at every comparison.
    """

    def __init__(self) -> None:
        self._own: dict[str, deque[Claim]] = {}
        self._rates: dict[str, tuple[int, int]] = {}
        self._servers: dict[str, Claim] = {}
        self._agreed: dict[tuple[str, str], bool] = {}
        self._slept_ns: int | None = None

    def feed(self, report: DaemonReport) -> list[DaemonReport]:
        """The comparisons that this report allows."""
        if (
            report.kind == "check"
            or report.state != "synchronised"
            or report.offset_ns is None
            or report.distance_ns is None
            or report.real_raw_ns is None
        ):
            return []
        if (
            self._slept_ns is not None and abs(report.boot_mono_ns - self._slept_ns) > _SUSPENDED_NS
        ):  # RAW may have stopped; the RTC's duration is too inexact
            self._own.clear()
            self._servers.clear()
        self._slept_ns = report.boot_mono_ns
        if report.kind == "source":
            return self._server(report) if report.daemon == "sntp" else []
        return self._daemon(report)

    def _daemon(self, b: DaemonReport) -> list[DaemonReport]:
        freq, skew = b.freq_ppb or 0, PHI_PPB if b.skew_ppb is None or b.freq_ppb is None else b.skew_ppb
        known = self._own.setdefault(b.daemon, deque(maxlen=KEPT))
        self._rates[b.daemon] = freq, skew + WANDER_PPB
        claim = self._claim(b, b.daemon, known[-1] if known else None)
        while known and claim.t_ns - known[0].t_ns > WINDOW_NS:
            known.popleft()
        out = []
        if known:
            worst = max(known, key=lambda old: _apart(old, claim)[0] - _apart(old, claim)[1])
            out += self._compare(b, "raw", worst, claim)
        known.append(claim)
        for server, earlier in list(self._servers.items()):
            if claim.t_ns - earlier.t_ns > WINDOW_NS:
                del self._servers[server]
                continue
            out += self._compare(b, server, self._alongside(earlier, b.daemon, claim), claim)
        return out

    def _server(self, b: DaemonReport) -> list[DaemonReport]:
        claim = self._servers[b.source] = self._claim(b, "", None)
        out = []
        for daemon, known in self._own.items():
            if known and claim.t_ns - known[-1].t_ns <= WINDOW_NS:
                now = self._alongside(claim, daemon, known[-1])
                out += self._compare(
                    DaemonReport(daemon, t_ns=b.t_ns, real_raw_ns=b.real_raw_ns), b.source, now, known[-1]
                )
        return out

    def _claim(self, b: DaemonReport, daemon: str, last: Claim | None) -> Claim:
        assert b.offset_ns is not None
        assert b.distance_ns is not None
        assert b.real_raw_ns is not None
        phase, slack = (0, 0) if last is None else self._carried(daemon, last, b.t_ns)
        return Claim(b.t_ns, b.offset_ns + b.real_raw_ns, b.distance_ns, phase, slack)

    def _carried(self, daemon: str, claim: Claim, t_ns: int) -> tuple[int, int]:
        """(phase_ns, slack_ns) at another time, by the daemon's frequency and skew."""
        freq, skew = self._rates[daemon]
        later = t_ns - claim.t_ns
        return claim.phase_ns + freq * later // 10**9, claim.slack_ns + skew * later // 10**9

    def _alongside(self, earlier: Claim, daemon: str, own: Claim) -> Claim:
        """A server's claim at the daemon's frequency."""
        return Claim(earlier.t_ns, earlier.utc_raw_ns, earlier.bound_ns, *self._carried(daemon, own, earlier.t_ns))

    def _compare(self, b: DaemonReport, against: str, earlier: Claim, own: Claim) -> list[DaemonReport]:
        apart, bound = _apart(earlier, own)
        agrees = apart <= bound
        before = self._agreed.get((b.daemon, against))
        self._agreed[b.daemon, against] = agrees
        if agrees and before:
            return []
        differs = _differ(earlier, own)
        seconds = abs(own.t_ns - earlier.t_ns) / 1e9
        other = f"its own of {seconds:.0f} s ago, carried on by MONOTONIC_RAW" if against == "raw" else f"{against}'s"
        words = (
            f"{b.daemon}'s time {'agrees with' if agrees else 'contradicts'} {other}: {differs / 1e6:+.3f} ms apart,"
            f" bound {bound / 1e6:.3f} ms"
        )
        return [
            DaemonReport(
                b.daemon,
                "check",
                "agree" if agrees else "disagree",
                against,
                t_ns=b.t_ns,
                offset_ns=differs,
                distance_ns=bound,
                real_raw_ns=b.real_raw_ns,
                reason=words,
            )
        ]


def _differ(a: Claim, b: Claim) -> int:
    """How much later UTC is by b than by a, in ns, with both at one time by the daemon's frequency."""
    return (b.utc_raw_ns - b.phase_ns) - (a.utc_raw_ns - a.phase_ns)


def _apart(a: Claim, b: Claim) -> tuple[int, int]:
    """(size of the difference, sum of the bounds), ns."""
    return abs(_differ(a, b)), a.bound_ns + b.bound_ns + abs(b.slack_ns - a.slack_ns)
