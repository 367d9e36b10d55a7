"""Findings in a real journal: systemd-journald and journalctl in a mount namespace of their own, with an empty /run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import Any

import pytest

from exporters.journal import CLOSED_ID, OPENED_ID, JournalNotifier
from tests.found import HOSTILE, events, finding, hostile
from tests.patience import until
from tests.servers.process import ROOT

JOURNALD = shutil.which("systemd-journald", path="/lib/systemd:/usr/lib/systemd")


def journalctl(*arguments: str) -> list[dict[str, Any]]:
    subprocess.run(["journalctl", "--sync"], check=True)
    found = subprocess.run(["journalctl", "-o", "json", *arguments], check=True, capture_output=True, text=True)
    return [json.loads(line) for line in found.stdout.splitlines()]


def inside() -> None:
    """In the namespace."""
    for directory in ("/run", "/var/log"):
        subprocess.run(["mount", "-t", "tmpfs", "none", directory], check=True)
    assert JOURNALD is not None
    with subprocess.Popen([JOURNALD], stderr=subprocess.DEVNULL) as journald:
        try:
            sink = JournalNotifier(events())
            sink.start()
            # It is tried until journald is there.
            sink.offer(finding("step", cause="clock_step", symptom="clock_jump", culprit_comm="chronyd"))
            sink.offer(finding("step", "closed", cause="clock_step", symptom="clock_jump", culprit_comm="chronyd"))
            for name, text in HOSTILE.items():
                sink.offer(hostile(name, text))
            until(lambda: not sink.waiting(), 20)
            print(json.dumps([journalctl("TICKSCOPE_CAUSE=clock_step"), journalctl("TICKSCOPE_CAUSE=process_stopped")]))
            assert journalctl("TICKSCOPE_CAUSE=busy") == []
            text = ["journalctl", "TICKSCOPE_CAUSE=clock_step", "-o", "short"]
            print(json.dumps(subprocess.run(text, check=True, capture_output=True, text=True).stdout))
            sink.close()
            assert sum(sink.losses().values()) == 0
        finally:
            journald.kill()


@pytest.mark.skipif(JOURNALD is None, reason="systemd-journald is not installed")
def test_findings_are_found_by_their_cause() -> None:
    command = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
    done = subprocess.run(
        [*command, sys.executable, "-m", "tests.servers.test_journald"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    entries, text = (json.loads(line) for line in done.stdout.splitlines())
    opened, closed = entries[0]
    assert [one["MESSAGE_ID"] for one in (opened, closed)] == [OPENED_ID, CLOSED_ID]
    assert [one["PRIORITY"] for one in (opened, closed)] == ["4", "6"]
    assert (opened["_TRANSPORT"], opened["SYSLOG_IDENTIFIER"]) == ("journal", "tickscope")
    assert opened["TICKSCOPE_CULPRIT_COMM"] == "chronyd"
    assert [one["TICKSCOPE_FINDING_ID"] for one in entries[1]] == list(HOSTILE)
    names = {name for one in entries[1] for name in one if not name.startswith("_")}
    assert {name for name in names if not name.startswith("TICKSCOPE_")} == {
        "MESSAGE",
        "MESSAGE_ID",
        "PRIORITY",
        "SYSLOG_IDENTIFIER",
    }
    assert all(isinstance(value, str) for one in entries[1] for value in one.values())  # else it is no text to journald
    assert "finding step opened (alarm): " in text


if __name__ == "__main__":
    inside()
