"""Jump notices of a whole agent: hooks in status and /proc, acknowledgements on the metrics page, and steps of 1 us,
undone.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kernel.clock_rig import PROLOGUE
from tests.patience import until
from tests.ports import free_port
from tests.system.agent import TICKSCOPE, Agent


def step() -> None:
    """Two jumps of the wall clock, 1 us forward and back."""
    script = (
        PROLOGUE
        + "assert step('raw_clock_adjtime', 1000) >= 0; time.sleep(0.05); assert step('raw_clock_adjtime', -1000) >= 0"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.usefixtures("own_clock")
def test_notices_hooks_acknowledgements_status_and_metrics(start: Callable[..., Agent], tmp_path: Path) -> None:
    port = free_port()
    agent = start(
        config=f"prometheus: 127.0.0.1:{port}\nnotices: {{exec: /bin/sh -c 'cat; exit 7'}}\njump_threshold: 10ms\n"
    ).ready()
    agent.root.chmod(0o755)
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.connect(str(agent.run_dir / "notices.sock"))
    agent.until(lambda: agent.status()["notices"]["subscribers"] == 2)
    step()
    notices = client.makefile("rb")
    reported = [json.loads(notices.readline()) for _ in range(2)]
    assert [n["size_ns"] > 0 for n in reported] == [True, False]
    pending = agent.until(lambda: (n := agent.status()["notices"])["pending"] == 2 and n)
    assert pending["waiting"][0]["pid"] == os.getpid()
    assert (
        f"not acknowledged: {pending['waiting'][0]['comm']} pid {os.getpid()}, 2 pending" in agent.cli("clock").stdout
    )
    client.sendall(json.dumps({"ack": reported[0]["t_ns"], "limiter": "checkout"}).encode() + b"\n")
    state = agent.until(
        lambda: (n := agent.status()["notices"])["acknowledged"] == 1 and n["hooks"]["exec"]["failed"] == 2 and n
    )
    assert state["last_ack"]["limiter"] == "checkout"
    assert state["hooks"]["exec"]["state"] == "running"
    assert "/bin/sh ended with 7" in state["hooks"]["exec"]["error"]
    assert "2 failed (/bin/sh ended with 7)" in agent.cli("clock").stdout

    roles = {p["role"]: p for p in agent.status()["processes"]}
    hook = roles["notice exec"]
    assert int(hook["cap_eff"], 16) == 0
    assert hook["no_new_privs"] is True
    assert hook["uid"] == roles["agent"]["uid"]
    links = [os.readlink(f.path) for f in os.scandir(f"/proc/{hook['pid']}/fd")]
    assert len(links) <= 6, links

    def page() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
            return str(answer.read().decode())

    lines = (
        'tickscope_clock_notices_acknowledged_total{tickscope_channel="socket"} 1\n',
        "tickscope_clock_pending_reanchorings 1\n",
        'tickscope_clock_notices_failed_total{tickscope_channel="exec"} 2\n',
        'ntp_jump_count_total{direction="forward"} 1\n',
        'ntp_jump_count_total{direction="backward"} 1\n',
        "ntp_leap_indicator ",
        'ntp_offset_seconds{tickscope_daemon="kernel"} ',
        "ntp_sync_status ",
        'ntp_jump_size_seconds_count{direction="forward"} 1\n',
        "tickscope_clock_drift_ratio ",
        "tickscope_clock_frequency_ratio ",
        "tickscope_clock_max_error_seconds ",
        'tickscope_probe_state{tickscope_probe="clock",tickscope_state="attached"} 1\n',
        'tickscope_process_cpu_seconds_total{tickscope_role="agent"} ',
        "tickscope_store_size_bytes ",
    )
    until(lambda: all(line in page() for line in lines), 20, 0.5, why=page)  # a drift is the slope over ten seconds
    client.close()
    rows = agent.rows("clock_change", "kind = 'step' AND abs(size_ns) < 5000", 2)
    assert [r["direction"] for r in rows] == ["forward", "backward"]
    jumps = [row for row in agent.json("findings")["rows"] if row["symptom"] == "clock_jump"]
    assert jumps == []  # below the threshold, and no limiter near; other tests have findings of their own
    agent.stop()
    assert not os.path.exists(f"/proc/{hook['pid']}")


@pytest.mark.usefixtures("own_clock")
def test_by_default_small_steps_are_findings_too_but_no_alarms(start: Callable[..., Agent]) -> None:
    agent = start().ready()
    step()
    time.sleep(1.5)
    step()
    rows = agent.until(
        lambda: (
            (r := agent.json("findings")["rows"]) and len(r) == 2 and all("2 times" in f["sentence"] for f in r) and r
        )
    )
    assert [(r["cause"], r["severity"]) for r in rows] == [("clock_step", "notice")] * 2


def test_a_wrong_setting_names_its_line(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text("prometheus: ''\nnotices: {exec: true-hook}\n")
    done = subprocess.run([TICKSCOPE, "run", "--config", str(file)], capture_output=True, text=True)
    assert done.returncode == 2
    assert f"{file}:2: notices.exec cannot be 'true-hook'" in done.stderr
    done = subprocess.run(
        [TICKSCOPE, "run", "--jump-threshold", "128"],
        capture_output=True,
        text=True,
        env={**os.environ, "TICKSCOPE_CONFIG": "/dev/null"},
    )
    assert done.returncode == 2
    assert "128ms" in done.stderr
