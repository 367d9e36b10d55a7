"""Programs and libraries without probes, or with some missing, each with its path, the reason and a remedy: rows of
``probe_status``, and in ``status``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from agent.batch import Batch, make
from agent.common.fairness import Places
from agent.common.printable import printable
from agent.kernel.limits import PROGRAMS_REPORTED
from agent.tables import TABLES
from agent.targets.asked import Owner

_WINDOW_NS = 60_000_000_000
#: Characters of a path in a row; the rest is for the reason.
_SHOWN = 120


@dataclass
class UnprobedProgram:
    """probe: as in probe_status; path: for display."""

    probe: str
    path: str
    state: str
    reason: str
    remedy: str
    uid: int = 0


class UnprobedPrograms:
    """Implements ``agent.contracts.Source``. Keeps at most PROGRAMS_REPORTED programs and makes as many rows a minute;
    ``more`` counts those that were left out.
    """

    name = "unseen programs"

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], UnprobedProgram] = {}
        self._places = Places(PROGRAMS_REPORTED)
        self._news: dict[tuple[str, str], UnprobedProgram] = {}
        self._rows_of: dict[tuple[str, str], UnprobedProgram] = {}
        self.more = 0
        self._more_reported = 0
        self._window_ns = self._rows = 0

    def of(self, probe: str, path: str, owner: Owner, state: str, reason: str, remedy: str) -> Callable[[], None]:
        """Reports a file with its owner; returns a function that removes the report."""
        name, shown = f"{probe}:{printable(path.rpartition('/')[2])}", printable(f"{path} ({owner})")
        self.report(UnprobedProgram(name, shown, state, reason, remedy, owner.uid))
        return partial(self.forget, name, shown)

    def report(self, one: UnprobedProgram) -> None:
        """Keeps it, and makes a row if it is new or has changed."""
        key = one.probe, one.path
        if self._kept.get(key) == one:
            return
        if key not in self._kept:
            if self._places.refusal(one.uid):
                self.more += 1
                return
            self._places.take(one.uid)
        self._kept[key] = one
        if self._rows_of.get(key) == one:  # forgotten and reported again: its row is still right
            self._news.pop(key, None)
        else:
            self._news[key] = one

    def forget(self, probe: str, path: str) -> None:
        """Removes a report, since no process uses the file any more. If no row was made yet, none is made now: programs
        that come and go quickly take no room.
        """
        gone = self._kept.pop((probe, path), None)
        if gone is not None:
            self._places.give_back(gone.uid)
            self._news.pop((probe, path), None)
            if (probe, path) in self._rows_of:
                self._news[probe, path] = UnprobedProgram(
                    probe, path, "off", "no process uses it any more", "", gone.uid
                )

    def reported(self) -> list[dict[str, str | None]]:
        """For ``status`` and ``probes``."""
        reported: list[dict[str, str | None]] = [
            _as_dict(u.probe, u.state, f"{u.path}: {u.reason}", u.remedy) for u in self._kept.values()
        ]
        if self.more:
            reported.append(_as_dict("programs", "degraded", self._beyond(), "see docs/limits.md"))
        return reported

    def _beyond(self) -> str:
        return (
            f"{self.more} reports of programs or libraries without probes were left out: at most"
            f" {PROGRAMS_REPORTED} are kept, {self._places.a_user} of each user but root"
        )

    def drain(self, now_ns: int) -> Iterable[Batch]:
        if not self._news and self.more == self._more_reported:
            return
        if now_ns - self._window_ns >= _WINDOW_NS:
            self._window_ns, self._rows = now_ns, 0
            if self.more > self._more_reported:
                self._more_reported = self.more
                yield _row(now_ns, "programs", "degraded", self._beyond(), "see docs/limits.md")
        while self._news and self._rows < PROGRAMS_REPORTED:
            key = next(iter(self._news))
            one = self._news.pop(key)
            self._rows += 1
            self._rows_of[key] = one
            if one.state == "off":
                del self._rows_of[key]
            yield _row(now_ns, one.probe, one.state, f"{_short(one.path)}: {one.reason}", one.remedy)

    def close(self) -> None: ...


def _short(path: str) -> str:
    return path if len(path) <= _SHOWN else "..." + path[3 - _SHOWN :]


def _as_dict(probe: str, state: str, reason: str, remedy: str) -> dict[str, str | None]:
    return {"probe": probe, "state": state, "reason": reason, "remedy": remedy or None}


def _row(now_ns: int, probe: str, state: str, reason: str, remedy: str) -> Batch:
    return make(
        "probe_status",
        1,
        t_ns=now_ns,
        probe=probe.encode()[:32],
        state=TABLES["probe_status"].code("state", state),
        reason=reason.encode(errors="replace")[:256],
        remedy=remedy.encode()[:160],
    )
