"""The agent's lines on stderr: their two formats, the journal, readers that do not read, and what is reported of
findings.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from agent.batch import Batch, make
from agent.log import INFO, WARNING, Log, journal
from agent.service import finding_log
from agent.service.finding_log import FindingLog
from agent.tables import TABLES


def test_text_and_json_and_priorities_for_the_journal_only(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w+b") as file:
        where = os.fstat(file.fileno())
        ours = {"JOURNAL_STREAM": f"{where.st_dev}:{where.st_ino}"}
        assert journal(ours, file.fileno())
        assert not any(
            journal(other, file.fileno())
            for other in ({}, {"JOURNAL_STREAM": f"{where.st_dev}:{where.st_ino + 1}"}, {"JOURNAL_STREAM": ""})
        )
        Log("text", ours, file.fileno()).log_message("tickscope: cannot x\n  why: y", WARNING, event="e")
        Log("text", {}, file.fileno()).log_message("ready attached=1", INFO, attached=1)
        Log("json", ours, file.fileno()).log_message("tickscope: two\nlines", INFO, event="e", n=3)
        file.seek(0)
        *text, last = file.read().decode().splitlines()
    assert text == ["<4>tickscope: cannot x", "<4>  why: y", "ready attached=1"]
    reported = json.loads(last.removeprefix("<6>"))
    assert reported.pop("time").endswith("Z")
    assert reported == {"level": "info", "message": "two\nlines", "event": "e", "n": 3}


def test_a_reader_that_does_not_read_holds_nobody_up_and_is_reported_what_it_missed() -> None:
    reader, writer = os.pipe()
    log = Log("json", {}, writer)
    for n in range(2000):  # 64 KB hold some 600 of them
        log.log_message(f"line {n}" + "x" * 60)
    assert 100 < log.left_out < 1900
    missed, got = log.left_out, os.read(reader, 1 << 20)
    log.log_message("at last")
    lines = [json.loads(line) for line in (got + os.read(reader, 1 << 20)).splitlines()]
    assert [(line.get("event"), line.get("count")) for line in lines[-2:]] == [("lines_lost", missed), (None, None)]
    assert len(lines) - 2 + missed == 2000
    os.close(reader)
    log.log_message("gone")  # a reader that has gone ends nobody either
    assert log.left_out == 1
    os.close(writer)


def test_what_a_verb_ends_with_waits_for_its_reader() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    with subprocess.Popen([sys.executable, "-m", "agent", "query", "tcp_rt"], stderr=writer) as verb:
        os.close(writer)
        with contextlib.suppress(subprocess.TimeoutExpired):
            verb.wait(1)
        with open(reader, "rb") as output:
            assert b"did you mean tcp_rtt" in output.read()
    assert verb.returncode == 2


def finding(name: bytes, state: str) -> Batch:
    table = TABLES["finding"]
    return make(
        "finding",
        1,
        finding_id=name,
        state=table.code("state", state),
        severity=table.code("severity", "alarm"),
        start_ns=10**9,
        end_ns=3 * 10**9,
        sentence=b"it began at boot+1.000, \x1b[2J",
        confidence=0.9,
    )


def test_each_finding_is_reported_once_when_opened_and_once_when_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    output: list[tuple[str, str, int]] = []
    monkeypatch.setattr(
        finding_log,
        "log_message",
        lambda text, level, **fields: output.append((fields["finding_id"], fields["event"], level)) or print(text),
    )
    log = FindingLog(lambda t_ns: t_ns + np.int64(1_700_000_000 * 10**9))
    for name, state in (
        (b"a", "open"),
        (b"a", "open"),
        (b"b", "closed"),
        (b"a", "closed"),
        (b"a", "closed"),
        (b"a", "open"),
        (b"a", "closed"),
    ):
        log.offer(finding(name, state))
    log.offer(make("loss", 1))
    assert output == [
        ("a", "finding_opened", 4),
        ("b", "finding_opened", 4),
        ("b", "finding_closed", 6),
        ("a", "finding_closed", 6),
        ("a", "finding_opened_again", 4),
        ("a", "finding_closed", 6),
    ]


def test_its_fields_name_the_host_the_culprit_and_where_they_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    output: list[dict[str, object]] = []
    monkeypatch.setattr(finding_log, "log_message", lambda text, level, **fields: output.append(fields))
    batch = finding(b"a", "open")
    batch.rows["culprit_pid"], batch.rows["culprit_comm"] = 7, b"chronyd"
    batch.rows["pod"], batch.rows["culprit_unit"] = b"api-7c9d", b"chrony.service"
    batch.rows["container_id"], batch.rows["culprit_container_id"] = b"4f1d", b"9b22"
    log = FindingLog(lambda t_ns: t_ns)
    log.offer(batch)
    log.offer(finding(b"b", "open"))
    shown = [
        {name: it for name, it in one.items() if name.startswith(("culprit", "pod", "host", "container"))}
        for one in output
    ]
    here = {"host": socket.gethostname()}
    culprit = {"culprit_comm": "chronyd", "culprit_pid": 7, "culprit_unit": "chrony.service"}
    containers = {"container_id": "4f1d", "culprit_container_id": "9b22"}
    assert shown == [{**here, **culprit, "pod": "api-7c9d", **containers}, here]


def test_many_findings_are_not_kept_for_ever(capfd: pytest.CaptureFixture[str]) -> None:
    log = FindingLog(lambda t_ns: t_ns)
    for n in range(1000):
        log.offer(finding(b"%d" % n, "open"))
        log.offer(finding(b"%d" % n, "closed"))
    assert len(log._events._open) <= 257
    err = capfd.readouterr().err
    assert err.count(" opened (alarm): it began at ") == err.count(" closed after 2 s (alarm): it began at ") == 1000
    assert "\\x1b[2J" in err and "\x1b" not in err
