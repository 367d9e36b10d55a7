"""Names that others chose cannot act on a terminal, whatever the format."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path

import pytest

from agent.batch import make
from agent.cli.output import echo, emit_rows, emit_stream, note
from agent.common.clocks import boot_ns
from agent.log import Log
from agent.tables import TABLES
from tests.commands import tickscope
from tests.unit.test_gaps_cli import store

#: Sets a title, clears the screen by an 8-bit control, deletes, turns text round, begins a line.
EVIL = 'a\x1b]0;b\x07\x9b2J\x7f\u202ex\ny\tz,"q"'
ROWS = [{"comm": EVIL, "list": [EVIL], "n": 3, "none": None}]


def harmless(text: str) -> bool:
    return all(c.isprintable() or c == "\n" for c in text)


@pytest.mark.parametrize("fmt", ["csv", "json", "ndjson", "table"])
def test_rows_and_streams(fmt: str, capsys: pytest.CaptureFixture[str]) -> None:
    emit_rows(ROWS, fmt, list(ROWS[0]), {})
    emit_stream(ROWS, fmt, list(ROWS[0]))
    out = capsys.readouterr().out
    assert "\\x1b" in out or "\\u001b" in out
    assert harmless(out)
    if fmt == "csv":
        heading, first, second = csv.reader(io.StringIO(out))
        assert heading == ["comm", "list", "n", "none"]
        assert first == second == ['a\\x1b]0;b\\x07\\x9b2J\\x7f\\u202ex\\ny\\tz,"q"', first[1], "3", ""]
        assert json.loads(first[1]) == [EVIL]
    if fmt == "ndjson":
        assert [json.loads(line) for line in out.splitlines()] == ROWS * 2


def test_verbs(tmp_path: Path) -> None:
    store(tmp_path, make("tcp_reset", 1, t_ns=boot_ns(), comm=b"a\x1b[2J\x9b"))
    for argv in (["query", "tcp_reset"], ["sql", "select comm, chr(27) || '[2J' as \"x\x1b[2J\" from tcp_reset"]):
        for fmt in ("csv", "table", "json", "ndjson"):
            done = tickscope(*argv, "--store", str(tmp_path), "-o", fmt)
            assert b"[2J" in done.stdout
            assert harmless(done.stdout.decode()), (argv, fmt)


def test_lines_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    note(f"gap: {EVIL}")
    echo(f"ntpd  {EVIL}")
    ours, theirs = os.pipe()
    Log("text", {}, theirs).log_message(f"tickscope: {EVIL}")
    output = [*capsys.readouterr(), os.read(ours, 1000).decode()]
    assert all("\\x1b]0;b" in one and harmless(one) for one in output)
    for end in (ours, theirs):
        os.close(end)


def test_what_verbs_report_beside_their_answer(tmp_path: Path) -> None:
    states, now = TABLES["probe_status"], boot_ns()
    status = make(
        "probe_status",
        1,
        t_ns=now,
        probe=b"limiter:x",
        state=states.code("state", "degraded"),
        reason=EVIL.encode(),
        remedy=EVIL.encode(),
    )
    loss = make("loss", 1, t_ns=now, stage=0, source=EVIL.encode()[:30], count=1, to_ns=now)
    store(tmp_path, make("tcp_reset", 1, t_ns=now), status, loss)
    for verb in ("limiters", "findings"):
        output = tickscope(verb, "--store", str(tmp_path)).stderr.decode()
        assert "\\x1b]0;b" in output and harmless(output), verb
