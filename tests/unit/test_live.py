"""The summary of ``run`` on a terminal: one line, and above it what the agent reports."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pyte
import pytest

from agent import log
from agent.batch import Batch, make
from agent.service import live as summary
from agent.service.live import Live, joined
from agent.tables import TABLES


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> Live:
    status = SimpleNamespace(counts=lambda: (6, 1), lost=lambda: "")
    return Live(SimpleNamespace(sinks=[], totals=dict.fromkeys(TABLES, 1000)), status)  # type: ignore[arg-type]


def finding(number: int, state: str) -> Batch:
    return make("finding", 1, finding_id=b"%d" % number, state=TABLES["finding"].code("state", state))


def test_it_counts_what_is_open_and_the_rows_of_a_second(live: Live) -> None:
    for number, state in ((1, "open"), (2, "open"), (1, "open"), (2, "closed")):
        live.offer(finding(number, state))
    live._loop.totals["tcp_rtt"] += 17
    live._rows = sum(live._loop.totals.values()) - 17
    live.show(0)
    words = live.words()
    assert {"1 finding open", "17 rows/s"} <= set(words)
    assert "1 not" in words[1]


def test_messages_stand_above_the_line_also_after_a_change_of_size(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = os.openpty()
    screen = pyte.Screen(60, 10)
    stdout: Any = os.fdopen(theirs, "w", encoding="utf-8")
    monkeypatch.setattr(summary.sys, "stdout", stdout)
    monkeypatch.setattr(summary, "width", lambda: 60)
    live.show(0)
    live._print("tickscope: first\n\x1b[2Jsecond")
    live.draw()
    monkeypatch.setattr(summary, "width", lambda: 30)
    live.draw()
    live.close()
    pyte.ByteStream(screen).feed(os.read(ours, 65536))
    shown = [line.rstrip() for line in screen.display if line.strip()]
    assert shown == ["tickscope: first", r"\x1b[2Jsecond"]  # the line itself is removed at the end
    log.show(None)


def test_words_are_left_out_whole() -> None:
    assert joined(["p50 12.3 ms", "p99 45.6 ms", "9 connects"], 26) == "p50 12.3 ms  p99 45.6 ms …"
    assert joined(["p50 12.3 ms", "p99 45.6 ms"], 24) == "p50 12.3 ms  p99 45.6 ms"
    assert joined(["p50 12.3 ms", "p99"], 5) == "p50 1"
