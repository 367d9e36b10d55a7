"""The live summary: what it keeps and what it shows, as lines of text."""

from __future__ import annotations

import re
from datetime import datetime
from types import SimpleNamespace

import pytest

from agent.batch import Batch, make
from agent.live import Live, _cut
from agent.tables import TABLES

STATUS = {"probes": [], "lost": "", "clock": {"synchronised": False, "maxerror_us": 16_000_000, "drift_ppb": 120}}

EPOCH_NS = 1_700_000_000 * 10**9


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> Live:
    monkeypatch.setenv("COLUMNS", "80")
    status = SimpleNamespace(counts=lambda: (6, 0), wall=lambda t_ns: t_ns + EPOCH_NS, **{name: lambda value=value: value for name, value in STATUS.items()})
    return Live(SimpleNamespace(sinks=[], totals=dict.fromkeys(TABLES, 1000)), status)  # type: ignore[arg-type]


def shown(live: Live) -> list[str]:
    return [re.sub(r"\x1b\[\d*m", "", line) for line in live._lines()]


def finding(number: int, state: str, severity: str, said: bytes = b"sentence %d") -> Batch:
    table = TABLES["finding"]
    return make("finding", 1, finding_id=b"%d" % number, state=table.code("state", state), severity=table.code("severity", severity),
                sentence=said % number)  # fmt: skip


def test_alarms_are_not_pushed_out_by_notices(live: Live) -> None:
    live.offer(finding(1, "closed", "alarm"))
    live.offer(finding(2, "open", "alarm"))
    for number in range(3, 12):
        live.offer(finding(number, "closed", "notice"))
    lines = shown(live)
    assert lines[lines.index("findings") + 1 :] == [f"  {said}" for said in ("open: sentence 2", "closed: sentence 1", "closed: sentence 11",
                                                                            "closed: sentence 10", "closed: sentence 9")]  # fmt: skip


def test_a_sentence_tells_wall_time(live: Live) -> None:
    live.offer(finding(7, "open", "alarm", b"it began at boot+%d.250"))
    assert shown(live)[-1] == f"  open: it began at {datetime.fromtimestamp(1_700_000_007):%Y-%m-%dT%H:%M:%S}.250"


def test_clock_changes_in_words(live: Live) -> None:
    kinds = TABLES["clock_change"]
    for kind, columns, said in (
        ("step", {"size_ns": -300_000, "comm": b"date", "pid": 17}, "  step of -300 us, date pid 17"),
        ("step", {"size_ns": 5_000}, "  step of 5 us, by whom was not seen"),
        ("frequency", {"size_ns": 0, "freq_after_ppb": 1500, "comm": b"chronyd", "pid": 3}, "  frequency set to +1.500 ppm, chronyd pid 3"),
        ("slew", {"size_ns": 0, "ret": -1, "comm": b"ntpd", "pid": 4}, "  slew refused by the kernel, ntpd pid 4"),
        ("step", {"size_ns": 0, "ret": -1, "comm": b"\xff\x1b[2J\n", "pid": 5}, r"  step refused by the kernel, \xff\x1b[2J\n pid 5"),
    ):
        live.offer(make("clock_change", 1, kind=kinds.code("kind", kind), **columns))
        assert said in shown(live)


@pytest.mark.parametrize("n", [4, 5, 9])
def test_limiters_and_queues_beyond_the_shown_are_counted(live: Live, n: int) -> None:
    live.offer(make("limiter_decision", n, limiter_id=[b"l%d" % i for i in range(n)], comm=b"app", pid=1))
    live.offer(make("queue_lag", n, destination=[b"q%d" % i for i in range(n)], consumer_group=b"g", lag_messages=1))
    lines = shown(live)
    assert (sum(line.startswith("limiter ") for line in lines), sum(line.startswith("queue ") for line in lines)) == (4, 4)
    said = [line.strip() for line in lines if " more: " in line]
    assert said == ([f"and {n - 4} more: tickscope {name}" for name in ("limiters", "queues")] if n > 4 else [])


def test_rates_take_as_many_lines_as_they_need(live: Live) -> None:
    lines = [line for line in shown(live) if " 1000" in line]
    assert all(len(line) <= 80 for line in lines)
    assert sorted(re.findall(r"(\w+) 1000", " ".join(lines))) == sorted(TABLES)


def test_escape_sequences_take_no_room() -> None:
    assert _cut("\x1b[1mabcdef\x1b[0mghi", 7) == "\x1b[1mabcdef\x1b[0mg"
