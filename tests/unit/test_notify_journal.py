"""Entries for the journal, decoded as journald does it; tests/servers/test_journald.py has journald itself."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporters import lane
from exporters.journal import CLOSED_ID, OPENED_ID, JournalNotifier, JournalSender, entry
from tests.found import HOSTILE, PLACES, events, finding, hostile
from tests.patience import until


def decoded(data: bytes) -> dict[str, bytes]:
    """The fields of an entry, by https://systemd.io/JOURNAL_NATIVE_PROTOCOL/."""
    fields = dict[str, bytes]()
    while data:
        line, _, data = data.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if not equals:
            (size,) = struct.unpack_from("<Q", data)
            value, end, data = data[8 : 8 + size], data[8 + size : 9 + size], data[9 + size :]
            assert end == b"\n"
        assert name.decode() not in fields
        fields[name.decode()] = value
    return fields


class Journald:
    """The socket of a journal at ``path``."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.settimeout(10)

    def entry(self) -> dict[str, bytes]:
        data, fds, _, _ = socket.recv_fds(self.socket, 1 << 20, 1)
        if not fds:
            return decoded(data)
        with open(fds[0], "rb") as file:
            seals = fcntl.fcntl(file, fcntl.F_GET_SEALS)
            assert seals == fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
            assert data == b""
            return decoded(os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "socket"


@contextlib.contextmanager
def notifying(path: Path, least: str = "notice") -> Iterator[JournalNotifier]:
    sink = JournalNotifier(events(severity=least), str(path))
    sink.start()
    try:
        yield sink
    finally:
        sink.close()


def test_a_finding_is_an_entry_when_it_opens_and_when_it_closes(path: Path) -> None:
    journald = Journald(path)
    with notifying(path) as sink:
        for batch in (
            finding("a", culprit_pid=7, cause_detail="SIGSTOP", **PLACES),
            finding("a"),
            finding("a", "closed"),
        ):
            sink.offer(batch)
        opened, closed = journald.entry(), journald.entry()
    assert opened["MESSAGE"] == b"finding a opened (alarm): Decisions of limiter shop:api took up to 2 s"
    assert closed["MESSAGE"].startswith(b"finding a closed after 2 s (alarm): ")
    assert [one["MESSAGE_ID"].decode() for one in (opened, closed)] == [OPENED_ID, CLOSED_ID]
    assert [one["PRIORITY"] for one in (opened, closed)] == [b"4", b"6"]
    assert [one["TICKSCOPE_EVENT"] for one in (opened, closed)] == [b"opened", b"closed"]
    wanted = {
        "SYSLOG_IDENTIFIER": "tickscope",
        "TICKSCOPE_FINDING_ID": "a",
        "TICKSCOPE_SEVERITY": "alarm",
        "TICKSCOPE_SYMPTOM": "decision_latency",
        "TICKSCOPE_SUBJECT": "limiter shop:api",
        "TICKSCOPE_CAUSE": "process_stopped",
        "TICKSCOPE_CAUSE_DETAIL": "SIGSTOP",
        "TICKSCOPE_CULPRIT_COMM": "redis-server",
        "TICKSCOPE_CULPRIT_PID": "7",
        **{f"TICKSCOPE_{name.upper()}": value for name, value in PLACES.items()},
        "TICKSCOPE_HOST": socket.gethostname(),
    }
    assert {name: opened[name].decode() for name in wanted} == wanted


def test_a_notice_that_becomes_an_alarm_opens_then_and_closes_in_any_case(path: Path) -> None:
    journald = Journald(path)
    with notifying(path, "alarm") as sink:
        sink.offer(finding("n", severity="notice"))
        sink.offer(finding("a", severity="notice"))
        sink.offer(finding("a"))
        sink.offer(finding("a", "closed", severity="notice"))
        sink.offer(finding("n", "closed", severity="notice"))
        sink.offer(finding("b"))
        got = [journald.entry() for _ in range(3)]
    assert [(one["TICKSCOPE_FINDING_ID"], one["TICKSCOPE_EVENT"]) for one in got] == [
        (b"a", b"opened"),
        (b"a", b"closed"),
        (b"b", b"opened"),
    ]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_adds_no_field(path: Path, name: str) -> None:
    journald = Journald(path)
    with notifying(path) as sink:
        sink.offer(hostile("a", "plain"))
        sink.offer(hostile("b", HOSTILE[name]))
        good, bad = journald.entry(), journald.entry()
    assert set(bad) == set(good)
    assert bad["TICKSCOPE_CAUSE"] == b"process_stopped"
    assert all(value.decode().isprintable() for value in bad.values())


def test_a_value_of_several_lines_is_one_value() -> None:
    value = "one\nTICKSCOPE_CAUSE=busy\nMESSAGE=two"
    assert decoded(entry([("MESSAGE", value), ("PRIORITY", 4)])) == {"MESSAGE": value.encode(), "PRIORITY": b"4"}


def test_an_entry_that_is_too_large_for_a_datagram_is_sealed_memory(path: Path) -> None:
    journald, sender = Journald(path), JournalSender(str(path))
    value = "x" * (8 << 20)
    assert sender.send(entry([("MESSAGE", value)])).status == "sent"
    assert journald.entry() == {"MESSAGE": value.encode()}
    sender.close()


def test_a_journal_that_is_away_or_behind_loses_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "_BACKOFF_S", (0.02, 0.1))
    with notifying(path) as sink:
        sink.offer(finding("0"))
        until(lambda: "No such file" in str(sink.state()["last_error"]))
        assert sink.state()["remedy"]
        journald = Journald(path)
        for n in range(1, 100):  # more than a socket holds (net.unix.max_dgram_qlen)
            sink.offer(finding(str(n)))
        until(lambda: "unavailable" in str(sink.state()["last_error"]))
        got = [journald.entry()["TICKSCOPE_FINDING_ID"] for _ in range(100)]
        assert got == [b"%d" % n for n in range(100)]
        assert sum(sink.losses().values()) == 0
