"""What /proc says about each process, against what docs/security.md promises."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.package.chart import capabilities
from tests.patience import until
from tests.system.agent import TICKSCOPE, Agent

KERNEL = tuple(int(n) for n in os.uname().release.split(".")[:2])
#: CAP_BPF, where a map's holder may not use it without.
AGENT = 0 if KERNEL >= (5, 19) else 1 << 39
#: CAP_CHECKPOINT_RESTORE, SYS_PTRACE, DAC_READ_SEARCH; and SYS_ADMIN, where uprobes are perf events.
HELPER = (1 << 40) | (1 << 19) | (1 << 2) | (0 if KERNEL >= (6, 6) else 1 << 21)


def facts(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def held(agent: Agent, **more: int) -> None:
    """Each process holds only what is promised. more: capabilities by role, beside those that are always there."""
    uid = str(pwd.getpwnam("tickscope").pw_uid)
    promised = {"agent": AGENT, "clock watch": 0, "helper": HELPER, **more}
    processes = agent.status()["processes"]
    assert {p["role"] for p in processes} == set(promised)
    for process in processes:
        found = facts(process["pid"])
        for name in ("CapInh", "CapBnd", "CapAmb"):
            assert int(found[name], 16) == 0, (process["role"], name)
        for name in ("CapPrm", "CapEff"):
            assert int(found[name], 16) == promised[process["role"]], (process["role"], name)
        assert found["Uid"].split() == [uid] * 4
        assert found["NoNewPrivs"] == "1"
        assert found["Groups"] == ""
        assert os.stat(f"/proc/{process['pid']}/environ").st_uid == 0, f"{process['role']} is dumpable"
        assert process["uid"] == int(uid)
        assert int(process["cap_eff"], 16) == promised[process["role"]]
        assert process["pss_bytes"] > 0
    assert facts(next(p["pid"] for p in processes if p["role"] == "helper"))["Seccomp"] == "2"
    # agent/posix/background.py: for some ms of urgent work it is SCHED_OTHER
    until(lambda: os.sched_getscheduler(agent.pid()) == os.SCHED_BATCH)


def test_each_process_holds_only_what_is_promised(shared: Agent) -> None:
    held(shared)


def test_who_asks_brokers_holds_nothing(start: Callable[..., Agent], tmp_path: Path) -> None:
    """But has the password, which only root can read: with none it would not connect, and ``failure`` be login."""
    credentials = tmp_path / "credentials"
    credentials.mkdir(0o700)
    (credentials / "redis").write_text("s3cret")
    agent = start(
        config="prometheus: ''\nredis: {url: 'redis://127.0.0.1:1', password_credential: redis}\n",
        env={"CREDENTIALS_DIRECTORY": str(credentials)},
    ).ready()
    assert agent.some("queue_lag", "failure = 'refused'")
    held(agent, **{"redis poller": 0})
    links = [os.readlink(f.path) for f in os.scandir(f"/proc/{agent.pid('redis poller')}/fd") if int(f.name) > 2]
    assert all(link.startswith("socket:") for link in links), links


def test_helper_and_watch_hold_few_descriptors(shared: Agent) -> None:
    for role, limit in (("helper", 6), ("clock watch", 16)):
        links = [os.readlink(f.path) for f in os.scandir(f"/proc/{shared.pid(role)}/fd")]
        assert len(links) <= limit, links
        assert not [link for link in links if "control.sock" in link or str(shared.store) in link]


def test_no_file_of_the_store_belongs_to_root(shared: Agent) -> None:
    assert {p.stat().st_uid for p in shared.store.rglob("*")} == {pwd.getpwnam("tickscope").pw_uid}
    assert shared.store.stat().st_mode & 0o7777 == 0o750


def test_not_root_is_reported_so() -> None:
    done = subprocess.run(
        ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", str(TICKSCOPE), "run"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 5
    assert "root" in done.stderr
    assert "sudo tickscope run" in done.stderr


def test_a_missing_capability_is_reported(start: Callable[..., Agent]) -> None:
    agent = start(wrap=("setpriv", "--bounding-set=-sys_admin,-bpf"))
    assert agent.process.wait(30) == 5
    assert "CAP_BPF" in agent.log()


def test_the_capabilities_of_the_chart_are_enough(start: Callable[..., Agent], shared: Agent) -> None:
    """tests/package has the whole chart, in a pod."""
    listed = {*capabilities(), "BPF", "PERFMON"}
    listed |= {"SYS_ADMIN"} if KERNEL < (6, 6) else set()
    listed |= {"SYS_RESOURCE"} if KERNEL < (5, 11) else set()
    bounds = ",".join(["-all", *(f"+{name.lower()}" for name in sorted(listed))])
    agent = start(wrap=("setpriv", f"--bounding-set={bounds}", "--no-new-privs")).ready()
    held(agent)
    states, usual = ({p["probe"]: p["state"] for p in one.status()["probes"]} for one in (agent, shared))
    assert states == usual


def test_everything_ends_with_the_agent(start: Callable[..., Agent]) -> None:
    agent = start().ready()
    pids = [p["pid"] for p in agent.status()["processes"]]
    assert agent.stop() == 130
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert not list(agent.run_dir.iterdir())
