"""Who may ask and where the agent may write: the group tickscope may, others and unusable places are told what to
do.
"""

from __future__ import annotations

import grp
import json
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.system.agent import TICKSCOPE, Agent

DECISIONS = 7
VERBS = (
    ("status",),
    ("query", "limiter_decision", "--where", "limiter_id = 'shop'"),
    ("findings",),
    ("limiters",),
    ("queues",),
    ("probes",),
    ("clock", "history"),
    ("sql", "SELECT 1"),
)


def ask(agent: Agent, groups: str, *argv: str) -> subprocess.CompletedProcess[str]:
    """A verb as the user nobody, with these groups besides."""
    who = ["setpriv", "--reuid=nobody", "--regid=nogroup", groups]
    return subprocess.run([*who, str(TICKSCOPE), *argv], env=agent.env, capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def agent(shared: Agent) -> Agent:
    """An agent that has decisions to show, below directories that anybody may enter."""
    shared.root.chmod(0o755)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        for _ in range(DECISIONS):
            sender.sendto(b'{"limiter": "shop", "result": "refused"}', str(shared.run_dir / "intake.sock"))
    assert shared.rows("limiter_decision", "limiter_id = 'shop'", DECISIONS)
    return shared


def test_a_member_of_the_group_may_ask(agent: Agent) -> None:
    group = f"--groups={grp.getgrnam('tickscope').gr_gid}"
    answers = {argv: ask(agent, group, *argv, "-o", "json") for argv in VERBS}
    assert {argv[0]: done.returncode for argv, done in answers.items() if done.returncode} in (
        {},
        {"findings": 3},
    )  # 0: something was wrong on this host
    assert len(json.loads(answers[VERBS[1]].stdout)["rows"]) == DECISIONS
    limiters = json.loads(answers["limiters",].stdout)["rows"]
    assert [row["decisions"] for row in limiters if row["limiter_id"] == "shop"] == [DECISIONS]
    status = json.loads(answers["status",].stdout)
    assert status["pid"] == agent.pid()
    assert {p["pss_bytes"] for p in status["processes"]} == {None}  # the kernel shows that to root only
    tail = subprocess.Popen(
        ["setpriv", "--reuid=nobody", "--regid=nogroup", group, str(TICKSCOPE), "tail", "clock_offset"],
        env=agent.env,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert tail.stdout is not None
    with tail.stdout:
        assert json.loads(tail.stdout.readline())["real_mono_ns"]
        tail.terminate()
    tail.wait(30)


def test_others_are_reported_which_group(agent: Agent) -> None:
    for argv in (*VERBS, ("tail", "loss"), ("record", "-o", "/dev/null")):
        done = ask(agent, "--clear-groups", *argv)
        assert done.returncode == 4, (argv, done.stderr)
        assert not done.stdout
        assert "Permission denied" in done.stderr
        assert "group tickscope" in done.stderr
    doctor = ask(agent, "--clear-groups", "doctor", "-o", "json")
    assert doctor.returncode == 3
    failed = [check for check in json.loads(doctor.stdout)["checks"] if check["state"] == "fail"]
    assert [check["id"] for check in failed] == ["root"]
    assert "sudo" in failed[0]["remedy"]


def test_waiting_for_an_agent_that_does_not_come(tmp_path: Path) -> None:
    env = {**os.environ, "TICKSCOPE_RUN_DIR": str(tmp_path)}
    done = subprocess.run(
        [str(TICKSCOPE), "status", "--wait", "0.3"], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 4
    assert "no agent answers" in done.stderr
    assert "sudo tickscope run" in done.stderr


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "read-only"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(place)], check=True)
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("variable", ["TICKSCOPE_STORE", "TICKSCOPE_RUN_DIR"])
def test_places_that_cannot_be_used(
    start: Callable[..., Agent], read_only: Path, tmp_path: Path, variable: str
) -> None:
    (tmp_path / "file").touch()
    for place, why in (
        (read_only, "Read-only"),
        (read_only / "below", "Read-only"),
        (tmp_path / "file" / "below", "Not a directory"),
    ):
        agent = start(env={variable: str(place)})
        assert agent.process.wait(60) == 4
        assert f"cannot use {place}" in agent.log()
        assert why in agent.log()
        assert "try:" in agent.log()
        assert "Traceback" not in agent.log()


@pytest.mark.parametrize("variable", ["TICKSCOPE_STORE", "TICKSCOPE_RUN_DIR"])
def test_a_directory_of_others_is_not_taken_over(start: Callable[..., Agent], tmp_path: Path, variable: str) -> None:
    """As in ``--store /var/lib``: neither it nor anything in it changes its owner or mode."""
    place = tmp_path / "lib"
    (place / "postgresql").mkdir(parents=True)
    (place / "hot-00000001.tsl").touch()
    place.chmod(0o755)
    before = [(p.stat().st_uid, p.stat().st_mode) for p in (place, *sorted(place.iterdir()))]
    agent = start(env={variable: str(place)})
    assert agent.process.wait(60) == 4
    assert "postgresql" in agent.log()
    assert [(p.stat().st_uid, p.stat().st_mode) for p in (place, *sorted(place.iterdir()))] == before
