"""Signals of a whole agent: an early Ctrl-C, a hang-up that is not its end, and what it tells of its findings where
nobody watches it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.patience import PATIENCE, until
from tests.system.agent import TICKSCOPE, Agent
from tests.system.test_notices import step


def _gone(group: int) -> bool:
    """Or has ended: in a container, the first process may not wait for it."""
    alive = subprocess.run(["pgrep", "-g", str(group), "-r", "D,R,S,T"], stdout=subprocess.DEVNULL)
    return alive.returncode == 1


def test_ctrl_c_before_it_is_ready_leaves_no_traceback_and_no_process(
    start: Callable[..., Agent], tmp_path: Path
) -> None:
    took = time.monotonic()
    agent = start().ready()
    took = time.monotonic() - took
    assert agent.stop() == 130
    for n in range(3):
        log = tmp_path / f"stderr-{n}"
        with log.open("wb") as out:
            early = subprocess.Popen(
                [TICKSCOPE, "run"], env=agent.env, stdout=subprocess.DEVNULL, stderr=out, start_new_session=True
            )
        time.sleep(0.1 + n * took / 3)
        os.killpg(early.pid, signal.SIGINT)  # as the terminal does it: to all its processes
        # On a busy host it may end before Python has a handler for the signal.
        assert early.wait(20 * PATIENCE) in (130, -signal.SIGINT), log.read_text()
        assert "Traceback" not in log.read_text() and "Error" not in log.read_text()
        until(partial(_gone, early.pid))


def test_a_hang_up_has_the_settings_read_again_and_never_ends_the_agent(start: Callable[..., Agent]) -> None:
    agent = start(config="prometheus: ''\n")
    for _ in range(20):  # from its start on
        time.sleep(0.02)
        if b"agent.start" in Path(f"/proc/{agent.process.pid}/cmdline").read_bytes():
            os.kill(agent.process.pid, signal.SIGHUP)
    agent.ready()
    agent.config.chmod(0o600)  # for root only, in a directory of root
    agent.config.write_text(
        "prometheus: '127.0.0.1:1'\njump_threshold: 128ms\nmax_bytes: 1048576\npoll_s: 3600\nintake_keys:"
        " clear\nlog_format: json\nnotify: {journal: alarm}\n"
    )

    def output(words: str) -> str:
        os.kill(agent.process.pid, signal.SIGHUP)
        return str(agent.until(lambda: next((line for line in agent.log().splitlines() if words in line), None)))

    first = json.loads(output("jump_threshold is now"))  # the format, too, is in force at once
    assert sorted(first["changed"]) == ["intake_keys", "jump_threshold", "log_format", "max_bytes", "poll_s"]
    assert first["needs_restart"] == ["prometheus", "notify"]
    assert first["level"] == "warning"
    assert "needs a restart: prometheus, notify" in first["message"]
    agent.config.write_text("prometheus: ''\npoll_s: never\n")
    assert "tickscope.yaml:2: poll_s" in json.loads(output("nothing was changed"))["message"]
    agent.config.write_text("prometheus: ''\n")
    assert "poll_s is now 1.0" in output("poll_s is now 1.0")
    agent.root.chmod(0o711)  # so that user tickscope may open what the helper does not
    os.unlink(agent.config)
    os.mkfifo(agent.config)  # nobody writes: who reads it waits for ever
    os.kill(agent.process.pid, signal.SIGHUP)
    time.sleep(0.5)
    assert agent.status()["pid"] == agent.process.pid
    os.unlink(agent.config)
    assert "there is no configuration file" in output("no configuration file")
    assert agent.stop() == 130
    assert not subprocess.run(["pgrep", "-f", "agent.service.reload"], stdout=subprocess.PIPE).stdout


@pytest.mark.usefixtures("own_clock")
def test_findings_are_reported_when_opened_and_when_closed_with_priorities_for_the_journal(
    start: Callable[..., Agent], tmp_path: Path
) -> None:
    """As JSON to a file, and as text to what JOURNAL_STREAM names."""
    plain = start("--log-format", "json").ready()
    step()
    ours, theirs = socket.socketpair()
    where = os.fstat(theirs.fileno())
    env = {
        **plain.env,
        "JOURNAL_STREAM": f"{where.st_dev}:{where.st_ino}",
        "TICKSCOPE_RUN_DIR": str(tmp_path / "run"),
        "TICKSCOPE_STORE": str(tmp_path / "store"),
    }

    def reported() -> list[dict[str, object]]:
        lines = [json.loads(line) for line in plain.log().splitlines()]
        return [line for line in lines if line.get("symptom") == "clock_jump"]  # others are of other tests' programs

    plain.until(lambda: len(reported()) >= 2)
    assert plain.stop() == 130
    lines = [json.loads(line) for line in plain.log().splitlines()]
    ready, *_, stopped = (line for line in lines if "event" in line)  # a finding may come first
    assert (ready["event"], ready["level"], ready["degraded"], stopped["event"]) == ("ready", "info", 0, "stopped")
    by_id: dict[object, list[object]] = {}
    for line in reported():
        by_id.setdefault(line["finding_id"], []).append((line["event"], line["level"]))
    assert list(by_id.values()) == [[("finding_opened", "notice"), ("finding_closed", "info")]] * len(by_id)

    with subprocess.Popen(
        [TICKSCOPE, "run"],
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        start_new_session=True,
    ) as service:
        theirs.close()
        text = b""
        while b"ready attached" not in text:
            text += ours.recv(65536)
        step()
        jump = re.compile(rb"finding \w+ (opened|closed).*The wall clock jumped")
        while not (events := jump.findall(text)) or events.count(b"closed") * 2 < len(events):
            text += ours.recv(65536)
        service.send_signal(signal.SIGINT)
        while piece := ours.recv(65536):
            text += piece
    assert service.returncode == 130
    lines = text.decode().splitlines()
    assert all(re.match(r"<[3-6]>", line) for line in lines)
    found = re.findall(r"<(\d)>tickscope: finding (\w+) (opened|closed).*The wall clock jumped", text.decode())
    assert found and sorted((p, e) for p, _, e in found) == sorted(
        [("5", "opened"), ("6", "closed")] * (len(found) // 2)
    )
    assert re.search(r"The wall clock jumped .* \d{4}-\d\d-\d\dT[\d:.]+(Z|[+-]\d\d:\d\d)", text.decode())
