"""The live summary: what it keeps and what it shows, as lines of text."""

from __future__ import annotations

import os
import re
import subprocess
import time
from datetime import datetime
from types import SimpleNamespace

import pytest

from agent.batch import Batch, make
from agent.columns import NULL_I64
from agent.service.live import Live
from agent.service.screen import cut, joined, row, shortened
from agent.tables import TABLES

STATUS = {"probes": [], "lost": "", "clock": {"synchronised": False, "maxerror_us": 16_000_000, "drift_ppb": 120}}

EPOCH_NS = 1_700_000_000 * 10**9


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> Live:
    monkeypatch.setenv("COLUMNS", "80")
    status = SimpleNamespace(
        counts=lambda: (6, 0),
        wall=lambda t_ns: t_ns + EPOCH_NS,
        **{name: lambda value=value: value for name, value in STATUS.items()},
    )
    return Live(SimpleNamespace(sinks=[], totals=dict.fromkeys(TABLES, 1000)), status)  # type: ignore[arg-type]


def shown(live: Live, width: int = 80, height: int = 200) -> list[str]:
    live._rates = live._rates or list(live._count())
    return [re.sub(r"\x1b\[\d*m", "", line).rstrip() for line in live.lines(width, height)]


def finding(number: int, state: str, severity: str, output: bytes = b"sentence %d") -> Batch:
    table = TABLES["finding"]
    return make(
        "finding",
        1,
        finding_id=b"%d" % number,
        state=table.code("state", state),
        severity=table.code("severity", severity),
        sentence=output % number,
    )


def test_alarms_are_not_pushed_out_by_notices(live: Live) -> None:
    live.offer(finding(1, "closed", "alarm"))
    live.offer(finding(2, "open", "alarm"))
    for number in range(3, 12):
        live.offer(finding(number, "closed", "notice"))
    lines = shown(live)
    assert lines[lines.index("findings") + 1 :] == [
        f"  {output}"
        for output in (
            "open: sentence 2",
            "closed: sentence 1",
            "closed: sentence 11",
            "closed: sentence 10",
            "closed: sentence 9",
        )
    ]


def test_a_sentence_reports_wall_time(live: Live) -> None:
    batch = finding(7, "open", "alarm")
    batch.rows["sentence_parts"] = b'["it began at ", 7250000000]'
    live.offer(batch)
    began = datetime.fromtimestamp(1_700_000_007.25).astimezone().isoformat(timespec="milliseconds")
    assert shown(live)[-1] == f"  open: it began at {began.replace('+00:00', 'Z')}"


def test_clock_changes_in_words(live: Live) -> None:
    kinds = TABLES["clock_change"]
    for kind, columns, output in (
        ("step", {"size_ns": -300_000, "comm": b"date", "pid": 17}, "step of -300 us, date pid 17"),
        ("step", {"size_ns": 5_000}, "step of 5 us, unknown process"),
        (
            "frequency",
            {"size_ns": 0, "freq_after_ppb": 1500, "comm": b"chronyd", "pid": 3},
            "frequency set to +1.500 ppm, chronyd pid 3",
        ),
        ("slew", {"size_ns": 0, "ret": -1, "comm": b"ntpd", "pid": 4}, "slew refused by the kernel, ntpd pid 4"),
        (
            "step",
            {"size_ns": 0, "ret": -1, "comm": b"\xff\x1b[2J\n", "pid": 5},
            r"step refused by the kernel, \xff\x1b[2J\n pid 5",
        ),
    ):
        live.offer(make("clock_change", 1, kind=kinds.code("kind", kind), **columns))
        assert output in [line.strip() for line in shown(live)]


LONG = (
    b"Decisions of limiter api (demo-limiter pid 4711) took up to 1.49 s instead of 190 us from boot+%d.174 to"
    b" boot+90.662 because redis-server (pid 43) at 127.0.0.1:40005 did not answer for 1.49 s while the smoothed RTT"
    b" rose only from 114 us to 5.68 ms. Also affected: the redis server at 127.0.0.1:40005."
)


def busy(live: Live) -> None:
    """Eight limiters, of which two refuse, four queues, three findings."""
    for i in range(8):
        result = [0] * 1234 + [1] * (17 * (i in {3, 6}))
        live.offer(
            make(
                "limiter_decision",
                len(result),
                limiter_id=b"rate.Limiter@0xc00005e0%02d" % i,
                comm=b"checkout-server",
                pid=os.getpid(),
                result=result,
                duration_ns=2_345_678,
            )
        )
    for i in range(4):
        live.offer(
            make(
                "queue_lag",
                1,
                destination=b"orders-of-region-%d" % i,
                consumer_group=b"billing",
                lag_messages=12_345,
                status=b"ok",
            )
        )
    for number, state in ((1, "closed"), (2, "open"), (3, "closed")):
        live.offer(finding(number, state, "alarm", LONG))


@pytest.mark.parametrize(("width", "height"), [(80, 23), (60, 14), (200, 49), (40, 30), (80, 8)])
def test_on_any_screen_lines_and_findings_are_whole_or_counted(live: Live, width: int, height: int) -> None:
    busy(live)
    lines, everything = shown(live, width, height), " ".join(" ".join(shown(live, width, 1000)).split())
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)
    text = " ".join(" ".join(lines).split())
    first = next(found for found in re.findall(r"(?:open|closed): .*?40005\.", everything) if found.startswith("open"))
    if height > 10:
        assert first in text  # the open one, to its last word
    output = re.findall(r"(?:open|closed): .*?40005\.", text)
    assert len(output) == sum(line.startswith(("  open: ", "  closed: ")) for line in lines)
    limiters, queues = (sum(bool(re.search(found, line)) for line in lines) for found in ("allowed 1234", "lag 12345"))
    missing = {(3 - len(output), "finding"), (8 - limiters, "limiter"), (4 - queues, "queue")}
    reported = re.findall(r"(\d+) (finding|limiter|queue)s?\b", lines[-1]) if lines[-1].startswith("not shown:") else []
    assert {(int(n), what) for n, what in reported} == {(n, what) for n, what in missing if n} or (width, height) in {
        (40, 30),
        (80, 8),
    }
    for number in re.findall(r"\d+(?:\.\d+)?", text):
        assert number in everything, number


def test_eighty_by_twenty_four_holds_eight_limiters_and_four_queues(live: Live) -> None:
    busy(live)
    text = "\n".join(shown(live, 80, 23))
    assert (text.count("allowed 1234"), text.count("refused 17"), text.count("lag 12345"), text.count("open: ")) == (
        8,
        2,
        4,
        1,
    )


def test_partitions_are_added_up_and_the_worst_status_is_shown(live: Live) -> None:
    for partition, lag, status in ((b"0", 7, b"ok"), (b"1", 300, b"stalled"), (b"2", 11, b"draining")):
        for cluster in (b"a", b"b"):
            live.offer(
                make(
                    "queue_lag",
                    1,
                    cluster=cluster,
                    destination=b"orders",
                    partition=partition,
                    consumer_group=b"g",
                    lag_messages=lag,
                    status=status if cluster == b"a" else b"ok",
                )
            )
    queues = [line for line in shown(live) if "orders/g" in line]
    assert [("lag 318" in line, "stalled" in line) for line in queues] == [(True, True), (True, False)]


def test_messages_are_on_the_screen_where_it_would_be_spoilt(live: Live) -> None:
    live._messages.append((time.monotonic(), "tickscope: queues: gone\n  try: something"))
    assert {"  tickscope: queues: gone", "    try: something"} <= set(shown(live))


def test_rates_take_as_many_lines_as_they_need(live: Live) -> None:
    lines = [line for line in shown(live) if " 1000" in line]
    assert all(len(line) <= 80 for line in lines)
    assert sorted(re.findall(r"(\w+) 1000", " ".join(lines))) == sorted(TABLES)


def test_limiters_of_processes_that_are_gone_are_not_shown(live: Live) -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    for name, pid in ((b"dead", child.pid), (b"alive", os.getpid()), (b"reported", NULL_I64)):
        live.offer(make("limiter_decision", 3, limiter_id=name, pid=pid, result=0))
    lines = " ".join(shown(live))
    assert "dead" not in lines
    assert "alive" in lines
    assert "reported" in lines


def test_escape_sequences_take_no_room() -> None:
    assert cut("\x1b[1mabcdef\x1b[0mghi", 7) == "\x1b[1mabcdef\x1b[0mg"
    assert cut("日本語", 5) == "日本"


def test_what_has_no_room_is_left_out_whole() -> None:
    assert joined(["p50 12.3 ms", "p99 45.6 ms", "9 connects"], 26) == "p50 12.3 ms  p99 45.6 ms …"
    assert joined(["p50 12.3 ms", "p99 45.6 ms"], 24) == "p50 12.3 ms  p99 45.6 ms"
    assert shortened("rate.Limiter@0xc00005e050", 13) == "rate.L…05e050"
    assert row("orders", [(1, "app 4711"), (4, "allowed 12")], 30) == "orders  app 4711  allowed 12"
    assert row("orders", [(1, "app 4711"), (4, "allowed 12")], 18) == "orders  allowed 12"
