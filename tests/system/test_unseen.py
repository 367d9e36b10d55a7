"""Programs whose handshakes or decisions cannot be seen are reported, each with its path, the reason and what to do:
rows of ``probe_status``.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.system.agent import Agent
from tests.unit.test_unseen_kinds import go_for, static_openssl


def test_programs_that_cannot_be_watched_are_rows(start: Callable[..., Agent], tmp_path: Path) -> None:
    go32, stripped = tmp_path / "limits32", tmp_path / "shakes"
    go_for(go32)
    static_openssl(stripped)
    subprocess.run(["strip", stripped], check=True)
    agent = start().ready()
    waiting = [[go32, "allow", "1"], [stripped, "wait"]]
    programs = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) for command in waiting]
    try:
        for path, reason, remedy in ((go32, "32-bit Go", "GOARCH=amd64"), (stripped, "contains OpenSSL", "")):
            rows = agent.rows("probe_status", f"reason LIKE '%{path}%'", 1)
            assert {row["state"] for row in rows} == {"unavailable"}, rows
            assert all(row["remedy"] for row in rows), rows
            assert any(reason in row["reason"] and remedy in row["remedy"] for row in rows), rows
        assert str(go32) in agent.cli("probes").stdout
    finally:
        for program in programs:
            program.kill()
            program.wait()
