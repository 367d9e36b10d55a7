"""Copies of a library are known by their content: examined once, whatever their inodes are."""

from __future__ import annotations

import errno
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.binaries.contract import Analysis
from agent.common.fairness import Places
from agent.kernel.opening import DIGEST_BYTES, digest
from agent.kernel.steps import Steps, at_once, pump_until, run
from agent.targets.analyzer_pool import AnalyzerPool
from agent.targets.asked import HOST, ProbeRequest, Target
from agent.targets.files import Files
from agent.targets.unprobed import UnprobedPrograms


class Offered:
    """Files with one library asked for, a real examiner, and what was found: (path, offsets)."""

    def __init__(self, name: str) -> None:
        self.analyzers = AnalyzerPool()
        self.files = Files(
            self.analyzers,
            lambda fds: at_once(lambda: digest(fds)),
            Places(64),
            UnprobedPrograms(),
            Counter(),
            multi=True,
        )
        self.found: list[tuple[str, dict[str, Any]]] = []
        self.ask = ProbeRequest("functions", self._take, "clock", {"names": ["clock_settime"]})
        self.files.libraries.append((name.encode(), self.ask))

    def _take(self, target: Target, analysis: Analysis) -> Steps[None]:
        self.found.append((target.path, analysis.facts["offsets"]))
        yield at_once(lambda: None)

    def offer(self, path: Path, at_once: bool = False) -> None:
        """at_once: nobody waits for an ELF analyzer's answer."""
        fd, done = os.open(path, os.O_RDONLY), list[object]()
        try:
            run(self.files.offer(HOST, str(path), fd, [], [self.ask]), lambda *end: done.append(end))
            assert at_once or pump_until(lambda: bool(done), [self.analyzers], 30)
        finally:
            os.close(fd)


@pytest.fixture
def libc() -> Path:
    line = next(line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith("/libc.so.6"))
    return Path(line.split()[-1])


@pytest.fixture
def offered(libc: Path) -> Iterator[Offered]:
    one = Offered(libc.name)
    yield one
    one.analyzers.close()


def test_a_copy_needs_no_elf_analyzer(offered: Offered, libc: Path, tmp_path: Path) -> None:
    offered.offer(libc)
    copy = Path(shutil.copy(libc, tmp_path))
    offered.offer(copy, at_once=True)
    assert [path for path, _ in offered.found] == [str(libc), str(copy)]
    assert offered.found[0][1] == offered.found[1][1] != {}


def test_what_differs_in_a_byte_is_examined(offered: Offered, libc: Path, tmp_path: Path) -> None:
    offered.offer(libc)
    other = Path(shutil.copy(libc, tmp_path))
    with other.open("r+b") as file:
        file.seek(other.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    offered.offer(other, at_once=True)
    assert [path for path, _ in offered.found] == [str(libc)]
    assert pump_until(lambda: len(offered.found) == 2, [offered.analyzers], 30)


def digest_of(*paths: Path) -> bytes:
    fds = [os.open(path, os.O_RDONLY) for path in paths]
    try:
        return digest(fds)
    finally:
        for fd in fds:
            os.close(fd)


def test_a_digest_is_of_all_content_and_of_the_ends_of_what_lies_beside(tmp_path: Path) -> None:
    one, beside = tmp_path / "one", tmp_path / "beside"
    one.write_bytes(bytes(300_000))
    beside.write_bytes(bytes(300_000))
    known = digest_of(one), digest_of(one, beside)
    assert len({*known, digest_of(one, one)}) == 2
    for at in (0, 131_071, 299_999):
        one.write_bytes(bytes(at) + b"\1" + bytes(299_999 - at))
        assert digest_of(one) != known[0]
    one.write_bytes(bytes(300_000))
    for content in (b"\1" + bytes(299_999), bytes(299_999) + b"\1", bytes(300_001)):
        beside.write_bytes(content)
        assert digest_of(one, beside) != known[1]


def test_large_files_have_none(tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.touch()
    os.truncate(large, DIGEST_BYTES + 1)
    with pytest.raises(OSError) as error:
        digest_of(large)
    assert error.value.errno == errno.EFBIG
