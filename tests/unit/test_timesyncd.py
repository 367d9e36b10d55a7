"""What systemd-timesyncd's file and the kernel's state say together; the kernel's is that of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.clock import timex
from agent.clock.daemons import timesyncd


@pytest.mark.parametrize(
    ("systemd", "stamp", "may_be"),
    [
        (True, True, True),
        (True, False, False),  # it has reached no server yet
        (False, False, True),  # a container does not see the file
    ],
)
def test_synchronised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, systemd: bool, stamp: bool, may_be: bool
) -> None:
    for name, there in (("SYSTEMD", systemd), ("STAMP", stamp)):
        monkeypatch.setattr(timesyncd, name, str(tmp_path / name))
        if there:
            (tmp_path / name).mkdir()
    of_kernel = not timex.read().status & timex.STA_UNSYNC
    report = timesyncd.read_state()
    assert report.state == ("synchronised" if may_be and of_kernel else "unsynchronised")
    assert ("no server" in report.reason) == (not may_be)
    assert (report.last_update_wall_ns is not None) == stamp
