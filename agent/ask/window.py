"""Time bounds of a query: what journalctl takes (``90s``, ``-1h``, ``10 min ago``, ``22:13``, ``yesterday``,
``2026-11-20 10:00``), ISO 8601, ``@SECONDS`` since 1970, and ``boot+SECONDS``.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from datetime import time as clock
from decimal import Decimal

import numpy as np

from agent.columns import NULL_I64
from agent.common import host
from agent.errors import USAGE, AgentError

#: The SQL function that turns (boot_id, t_ns) into a struct of the wall columns (agent/store/query.py).
WALL = "tickscope_wall"
#: What systemd.time(7) calls the units, with its lengths of months (30.44 days) and years.
_UNITS_NS = {
    10**6: "ms msec",
    10**9: "s sec second seconds",
    60 * 10**9: "m min minute minutes",
    3600 * 10**9: "h hr hour hours",
    86400 * 10**9: "d day days",
    7 * 86400 * 10**9: "w week weeks",
    2629800 * 10**9: "M month months",
    31557600 * 10**9: "y year years",
}
_UNIT_NS = {name: ns for ns, names in _UNITS_NS.items() for name in names.split()}
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?) *([a-zM]+) *", re.ASCII)
_RELATIVE = re.compile(rf"([+-]?) *((?:{_AMOUNT.pattern})+?)(?: *(ago))?", re.ASCII)
_CLOCK = re.compile(r"\d{1,2}:\d\d(:\d\d(\.\d+)?)?", re.ASCII)
_WEEKDAY = re.compile(r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]* ")  # as systemctl and journalctl print a time
_DAYS = {"yesterday": -1, "today": 0, "tomorrow": 1}
_BOOT = re.compile(r"boot\+(\d+(?:\.\d+)?)s?")
_UNIX = re.compile(r"@(\d+(?:\.\d+)?)")
_BELOW_US = re.compile(r"[.,](\d{7,9})\d*")  # which datetime leaves out


@dataclass(frozen=True)
class Bound:
    """One end of a window. boot_id and t_ns: rows of that boot compare their CLOCK_BOOTTIME; wall_ns: all other rows
    compare their wall time, or match never where it is None."""

    boot_id: str | None
    t_ns: int
    wall_ns: int | None

    def compare(
        self,
        op: Callable[[np.ndarray, int], np.ndarray],
        boot_id: str,
        t_ns: np.ndarray,
        wall: Callable[[np.ndarray], np.ndarray],
    ) -> np.ndarray:
        """As ``sql``, for times of one boot (CLOCK_BOOTTIME ns, shape (n,)). wall: gives their wall times, Unix ns,
        NULL_I64 where not known.
        """
        if self.boot_id == boot_id:
            return op(t_ns, self.t_ns)
        if self.wall_ns is None:
            return np.zeros(len(t_ns), bool)
        walls = wall(t_ns)
        kept: np.ndarray = op(walls, self.wall_ns) & (walls != NULL_I64)
        return kept

    def sql(self, op: str, t: str = "t_ns") -> str:
        """A condition on a row's boot_id and the SQL expression ``t`` (CLOCK_BOOTTIME ns)."""
        wall = "false" if self.wall_ns is None else f"{WALL}(boot_id, {t}).wall_ns {op} {self.wall_ns}"
        if self.boot_id is None:
            return f"({wall})"
        return f"(CASE WHEN boot_id = '{self.boot_id}' THEN {t} {op} {self.t_ns} ELSE {wall} END)"


def parse(text: str, boots: list[str], end: tuple[str, int] | None = None) -> Bound:
    """boots: those of the store, oldest first; ``boot+S`` means this boot or, where the store has no row of it (a
    copy), its newest. end: (boot id, CLOCK_BOOTTIME ns) from which relative times count back; by default now. A time
    without zone is local. Raises AgentError (exit 2).
    """
    text = text.strip()
    boot = host.boot_id()
    if (back := _back_ns(text)) is not None:
        if end is not None:
            return Bound(end[0], end[1] - back, None)
        return Bound(boot, time.clock_gettime_ns(time.CLOCK_BOOTTIME) - back, time.time_ns() - back)
    if match := _BOOT.fullmatch(text):
        newest = boot if boot in boots or not boots else boots[-1]
        return Bound(newest, int(Decimal(match[1]) * 10**9), None)
    if match := _UNIX.fullmatch(text):
        return Bound(None, 0, int(Decimal(match[1]) * 10**9))
    try:
        moment = _moment(text)
        seconds = int(moment.replace(microsecond=0).timestamp())
    except (ValueError, OverflowError) as error:
        raise AgentError(
            f"cannot read the time {text!r}",
            remedy=(
                "use 90s, 2h, 1w, '10 min ago', 22:13, yesterday, '2025-01-31 12:00', ISO 8601, @SECONDS, or"
                " boot+SECONDS"
            ),
            exit_code=USAGE,
        ) from error
    digits = _BELOW_US.search(text)
    return Bound(None, 0, seconds * 10**9 + (int(digits[1].ljust(9, "0")) if digits else moment.microsecond * 1000))


def _back_ns(text: str) -> int | None:
    """How far a relative time lies before now, ns; None where the text is none."""
    if text == "now":
        return 0
    match = _RELATIVE.fullmatch(text)
    amounts = _AMOUNT.findall(match[2]) if match else []
    if match is None or any(unit not in _UNIT_NS for _, unit in amounts) or (match[1] and match[5]):
        return None
    back = int(sum(Decimal(number) * _UNIT_NS[unit] for number, unit in amounts))
    return -back if match[1] == "+" else back


def _moment(text: str) -> datetime:
    """A time of the day is today's, a day begins at midnight. Raises ValueError."""
    today = datetime.fromtimestamp(time.time()).date()
    if text in _DAYS:
        return datetime.combine(today + timedelta(days=_DAYS[text]), clock())
    if _CLOCK.fullmatch(text):
        return datetime.combine(today, clock.fromisoformat(text.zfill(len(text) + (text[1] == ":"))))
    text = _WEEKDAY.sub("", text, count=1)
    zone = next((zone for zone in ("UTC", *time.tzname) if text.endswith(f" {zone}")), "")
    moment = datetime.fromisoformat(text.removesuffix(f" {zone}") + ("Z" if zone == "UTC" else ""))
    if zone in ("", "UTC"):
        return moment
    for fold in (0, 1):  # an hour that a change of the clocks repeats
        found = moment.replace(fold=fold).astimezone()
        if found.tzname() == zone and found.replace(tzinfo=None, fold=0) == moment:  # not in an hour that is left out
            return found
    raise ValueError(f"{zone} does not apply at that time")


@dataclass(frozen=True)
class Window:
    """since inclusive, until exclusive; None is open. Raises AgentError (exit 2) if until is before since."""

    since: Bound | None = None
    until: Bound | None = None

    def __post_init__(self) -> None:
        since, until = self.since, self.until
        if since is None or until is None:
            return
        reversed_walls = since.wall_ns is not None and until.wall_ns is not None and until.wall_ns < since.wall_ns
        if reversed_walls or (until.boot_id == since.boot_id and until.t_ns < since.t_ns):
            remedy = "give an earlier --since (--help has its default)"
            raise AgentError("--until is before --since", remedy=remedy, exit_code=USAGE)

    def rows(self) -> list[str]:
        """Conditions on a row's own time."""
        return [b.sql(op) for b, op in ((self.since, ">="), (self.until, "<")) if b is not None]

    def known(self, as_of: str) -> list[str]:
        """Conditions on the column that says when a row was known: before the window's end."""
        return [] if self.until is None else [self.until.sql("<", as_of)]

    def overlaps(self, first: str, last: str) -> list[str]:
        """Conditions on an interval given by two SQL expressions, CLOCK_BOOTTIME ns: that it overlaps the window."""
        return [b.sql(op, t) for b, op, t in ((self.since, ">=", last), (self.until, "<", first)) if b is not None]

    def covers(self, boot_id: str, low_ns: int, high_ns: int) -> bool:
        """True where all rows of that boot between these times lie inside, as far as that can be told without the
        offset history.
        """
        after = self.since is None or (self.since.boot_id == boot_id and low_ns >= self.since.t_ns)
        before = self.until is None or (self.until.boot_id == boot_id and high_ns < self.until.t_ns)
        return after and before

    def misses(self, boot_id: str, low_ns: int, high_ns: int) -> bool:
        """True where no row of that boot between these times can lie inside, so that its file need not be opened."""
        before = self.since is not None and self.since.boot_id == boot_id and high_ns < self.since.t_ns
        after = self.until is not None and self.until.boot_id == boot_id and low_ns >= self.until.t_ns
        return before or after
