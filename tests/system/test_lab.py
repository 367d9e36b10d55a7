"""The laboratory for real: faults that are felt and written down, and nothing that stays, also when it is killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from agent.demo.processes import child
from agent.lab.kind import Fault, kinds
from agent.lab.plan import one
from agent.lab.program import programs
from agent.lab.replay import reported
from agent.lab.report import injected
from agent.lab.session import LabSession
from agent.lab.stage import ledger
from agent.lab.stage.cgroups import roots
from agent.lab.stage.namespaces import ENDED_S, Namespaces, reap
from agent.lab.stage.stage import GUESTS, Stage
from agent.lab.truth import RECORDING, Truth
from tests.patience import PATIENCE, until

TICKSCOPE = Path(sys.executable).with_name("tickscope")


def left_behind() -> dict[str, list[str]]:
    """What runs of the laboratory that have ended may have left on this host, and nobody else has."""
    loops = subprocess.run(
        ["losetup", "--noheadings", "--output", "NAME,BACK-FILE"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    names = dict[str, str]()
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            names[path.name] = path.joinpath("comm").read_text(errors="replace").strip()
    return {
        "directories": [str(p) for p in ledger.BASE.glob(f"{ledger.PREFIX}*")],
        "cgroups": [str(p) for root in roots() for p in root.glob(f"{ledger.PREFIX}*")],
        "loop devices": [line for line in loops if ledger.PREFIX in line],
        "mounts": [line for line in Path("/proc/mounts").read_text().splitlines() if ledger.PREFIX in line],
        # in a container, the first process may not wait for those that ended
        "processes": [
            f"{pid} {comm}" for pid, comm in names.items() if comm.startswith("lab-") and _state(pid) not in ("Z", "")
        ],
    }


def nothing() -> dict[str, list[str]]:
    return {"directories": [], "cgroups": [], "loop devices": [], "mounts": [], "processes": []}


@pytest.mark.parametrize("names", ["flock_held", "flock_held disk_frozen"])
def test_faults_are_noticed_written_down_and_replayed_and_nothing_stays(tmp_path: Path, names: str) -> None:
    out, options = tmp_path / "out", "--duration 1.5s --seed 4 -o json"
    command = [str(TICKSCOPE), "lab", "run", *names.split(), *options.split(), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120 * PATIENCE)
    assert done.returncode == 0, done.stderr
    assert left_behind() == nothing()
    truth = Truth.read(out)
    lock, *disk = truth.faults
    assert "api-flock" in lock.victims
    assert all("api-journal" in fault.victims for fault in disk)
    assert lock.culprit["pids"]
    assert all(1.4e9 < fault.end_ns - fault.start_ns < 4e9 * PATIENCE for fault in truth.faults)
    rows = [row for row in json.loads(done.stdout)["rows"] if row["id"]]
    assert [row["kind"] for row in rows] == names.split()
    assert [row["found"] for row in injected(truth, reported(out / RECORDING)) if row["id"]] == [
        row["found"] for row in rows
    ]
    assert all(row["found"] for row in rows), "a second and a half without a decision is found"


def test_faults_are_noticed_from_the_mild_end_on(tmp_path: Path) -> None:
    """Without an agent: the workload's own log says so. Not cpu_hog: its mild end depends on what else the processors
    do.
    """
    names = (
        "flock_held",
        "posix_lock_held",
        "tls_clients_slow",
        "disk_slow_reads",
        "broker_refusing",
        "broker_full_clients",
        "overload",
        "retry_storm",
        "deadline_chain",
    )
    some = (
        "api-flock",
        "hold-flock",
        "api-posix",
        "hold-posix",
        "api-lookup",
        "redis",
        "api-redis",
        "tls-server",
        "api-tls12",
        "link",
        "shop",
        "eager",
        "back",
        "middle",
        "front",
    )
    there, plan = {name: programs()[name] for name in some}, []
    for name in names:
        kind = kinds()[name]
        target = next(t for t in kind.targets if kind.reach(replace(one(kind, 1), target=t), there))
        mild = kind.size.mild
        plan.append((Fault(name, target, mild, mild if kind.size.what == "duration_s" else 3.0, 1.0, 1),))
    truth = LabSession(plan, 1, tmp_path / "out", observed=False, workload=there, patience=PATIENCE).play()
    assert left_behind() == nothing()
    assert truth.left_out == []
    assert {fault.kind: fault.victims for fault in truth.faults if not fault.victims} == {}


@pytest.mark.parametrize("janitor", ["lives", "is killed too"])
def test_a_killed_laboratory_leaves_nothing(tmp_path: Path, janitor: str) -> None:
    command = [str(TICKSCOPE), "lab", "run", "disk_frozen", "--duration", "60s", "--out", str(tmp_path / "out")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as lab:
        try:
            until(lambda: any("lab-api-journal" in p and _state(p) == "D" for p in left_behind()["processes"]))
            before = left_behind()
            assert all(before[what] for what in before if what != "mounts"), "the mount is in the run's own namespace"
            if janitor == "is killed too":
                os.kill(_janitor(lab.pid), signal.SIGKILL)
        finally:
            lab.kill()
    if janitor == "is killed too":
        time.sleep(0.5)
        assert left_behind() != nothing()
        assert ledger.sweep() == []
    until(lambda: left_behind() == nothing(), 60, 0.1, why=left_behind)


@pytest.mark.parametrize("seed", range(3, 9))
def test_a_stage_gives_back_its_descriptors_and_ends_whatever_its_seed(tmp_path: Path, seed: int) -> None:
    def open_files() -> list[str]:
        return sorted(os.listdir("/proc/self/fd"))

    with Stage(tmp_path, {}, 0):  # the first keeps the numbers that are programs'
        pass
    before = open_files()
    with Stage(tmp_path, {"link": programs()["link"]}, seed) as stage:
        assert stage.processes.ended() == []
    assert open_files() == before


def test_a_stage_ends_beside_other_children_of_its_process(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as other:
        try:
            before = _children()
            with Stage(tmp_path, {"link": programs()["link"]}, 1) as stage:
                never = stage.processes.fork(signal.pause, GUESTS, "node", "lab-guest", root=False)
                assert never in _children()
            assert other.poll() is None
            assert _children() == before, "whom the run had is waited for, and nobody else"
        finally:
            other.kill()


def test_the_realm_is_entered_beside_threads_and_whatever_became_of_its_descriptors() -> None:
    """A number that something closes twice may be another file's by then."""
    namespaces = Namespaces()
    theirs = os.readlink(f"/proc/{namespaces.first}/ns/mnt")

    def inside() -> None:
        null = os.open(os.devnull, os.O_RDONLY)
        for fd in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # the listing's own
                if os.readlink(f"/proc/self/fd/{fd}") == theirs:
                    os.dup2(null, int(fd))
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        namespaces.enter_mounts()
        assert os.readlink("/proc/thread-self/ns/mnt") == theirs

    try:
        with namespaces.forking():
            pid = child(inside)
        assert os.waitpid(pid, 0)[1] == 0
    finally:
        os.kill(namespaces.first, signal.SIGKILL)
        assert reap([namespaces.first], ENDED_S) == []
        namespaces.close()


def _children() -> set[int]:
    return {int(pid) for file in Path("/proc/self/task").glob("*/children") for pid in file.read_text().split()}


def _janitor(parent: int) -> int:
    found = subprocess.run(
        ["pgrep", "-P", str(parent), "-f", "agent.lab.stage.cleanup"], capture_output=True, text=True, check=True
    )
    return int(found.stdout)


def _state(entry: str) -> str:
    try:
        return Path(f"/proc/{entry.split(maxsplit=1)[0]}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
