"""Retention by age: what the clocks of the host may do to it, over boots, lost files and full disks."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path

import pytest

from agent.batch import make
from agent.store import seal, segments
from agent.store.frames import Encoder, Head
from agent.store.lifetimes import NAME, Lifetimes
from agent.store.retention import Retention
from agent.store.seal import seal_all

HOUR = 3600 * 10**9
DAY = 24 * HOUR
WEEK = Retention(max_bytes=1 << 30, max_age_s=7 * 86400.0)


class Host:
    """An agent's segments, written by hand, and its sealer in this process; the current directory is the store."""

    def __init__(self) -> None:
        self.boots = (f"boot-{n}" for n in itertools.count())
        self.boot, self.now_ns, self.seq = next(self.boots), 0, 0

    def reboot(self) -> None:
        self.boot, self.now_ns = next(self.boots), 0

    def segment(self, lasts_ns: int, row_ns: int | None = None) -> None:
        """One more closed segment, up to now plus ``lasts_ns``."""
        created, self.now_ns = self.now_ns, self.now_ns + lasts_ns
        self.seq += 1
        encoder = Encoder()
        pieces, _ = encoder.batches([make("tcp_reset", 1, t_ns=self.now_ns if row_ns is None else row_ns)])
        data = b"".join(
            [encoder.head(Head(self.boot, "host-a", "", created, 0)), *pieces, encoder.tick(self.now_ns), encoder.end()]
        )
        Path(segments.hot_name(self.seq)).write_bytes(data)

    def seal(self, limits: Retention = WEEK) -> list[int]:
        """Sequence numbers of the segments that are left."""
        assert seal_all(self.seq + 1, limits, lambda: (self.boot, self.now_ns)) == []
        return [int(path.name[7:]) for path in sorted(Path().glob("sealed-*"))]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.chdir(tmp_path)
    return Host()


def test_no_step_of_the_wall_clock_removes_anything(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time()
    kept: list[int] = []
    for wall in (0.0, real, real + 30 * 86400, real + 9e9, 0.0, real + 60 * 86400, real):
        monkeypatch.setattr(time, "time", lambda wall=wall: wall)
        for _ in range(2):
            host.segment(HOUR)
            kept.append(host.seq)
            assert host.seal() == kept
        host.reboot()


def test_within_a_boot_segments_go_once_a_week_has_passed(host: Host) -> None:
    for _ in range(9):
        host.segment(DAY)
        host.seal()
    assert host.seal() == list(range(2, 10))
    host.now_ns += 8 * DAY
    assert host.seal() == []


def test_days_add_up_over_boots(host: Host) -> None:
    for _ in range(20):
        host.segment(HOUR)
        host.seal()
        host.segment(23 * HOUR)
        host.reboot()
    assert host.seal() == list(range(26, 41))  # From the second of day 13 on, which ended 7 days ago.


def test_boots_too_short_for_the_sealer_count_as_well(host: Host) -> None:
    for _ in range(10):
        host.segment(DAY)
        host.reboot()
    assert host.seal() == list(range(3, 11))


def test_neither_another_hosts_uptime_nor_a_rows_own_time_ages_a_store(host: Host) -> None:
    host.segment(HOUR, row_ns=1 << 61)
    host.seal()
    host.reboot()
    host.now_ns = 300 * DAY  # The store came to a host that was booted long ago.
    host.segment(HOUR)
    assert host.seal() == [1, 2]


def test_a_boot_clock_that_goes_back_removes_nothing(host: Host) -> None:
    host.now_ns = 10 * DAY
    for _ in range(3):
        host.segment(HOUR)
        host.seal()
        host.now_ns -= 8 * DAY  # A virtual machine's snapshot was restored, its store's disk was not.
    assert host.seal() == [1, 2, 3]


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"[]",
        b'{"boot_id": "boot-0"',
        b'{"boot_id": 1, "t_ns": null, "lived_ns": 2}',
        b'{"boot_id": "", "t_ns": 1, "lived_ns": Infinity}',
        b"\xff",
    ],
)
def test_a_lost_count_goes_on_from_the_newest_segment(host: Host, content: bytes | None) -> None:
    for _ in range(3):
        host.segment(2 * DAY)
        host.seal()
    if content is None:
        Path(NAME).unlink()
    else:
        Path(NAME).write_bytes(content)
    assert host.seal() == [1, 2, 3]
    host.now_ns += 4 * DAY
    assert host.seal() == [2, 3]


def test_a_shorter_count_leaves_no_rest_of_the_longer(host: Host) -> None:
    Lifetimes("a-much-longer-boot-id", 10**18, 10**18).save()
    Lifetimes("b", 1, 2).save()
    assert json.loads(Path(NAME).read_text()) == {"boot_id": "b", "t_ns": 1, "lived_ns": 2}
    assert Lifetimes.load() == Lifetimes("b", 1, 2)


def test_while_sealing_fails_age_still_makes_room(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.segment(HOUR)
    host.seal()
    host.segment(HOUR)

    def full(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(seal, "_convert", full)
    for _ in range(8):
        host.now_ns += DAY
        with pytest.raises(OSError):
            host.seal()
    assert not Path(segments.sealed_name(1)).exists()
    assert Path(segments.hot_name(2)).exists()


def test_a_segment_that_the_store_removed_while_others_were_sealed_is_nothing_to_seal(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        host.segment(HOUR)
    whole = seal.seal

    def meanwhile(seq: int, lived: Lifetimes) -> None:
        whole(seq, lived)
        Path(segments.hot_name(2)).unlink(missing_ok=True)

    monkeypatch.setattr(seal, "seal", meanwhile)
    assert host.seal() == [1, 3]
    assert not list(Path().glob("*.tsl")) and not list(Path().glob("sealing-*"))


def test_a_segment_that_the_store_removes_while_it_is_sealed_is_sealed(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.segment(HOUR)
    reach = Lifetimes.reach

    def meanwhile(lived: Lifetimes, boot_id: str, from_ns: int, to_ns: int) -> None:
        Path(segments.hot_name(1)).unlink(missing_ok=True)
        reach(lived, boot_id, from_ns, to_ns)

    monkeypatch.setattr(Lifetimes, "reach", meanwhile)
    assert host.seal() == [1]
