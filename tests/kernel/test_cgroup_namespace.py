"""A process in a cgroup namespace of its own, as in a container with version 2, that sees the host's tree: the paths
of all processes are those that the host has.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import until

READ = """
import sys
from agent.common import process_cgroup
for pid in map(int, sys.argv[1:]):
    print(next(line for line in process_cgroup.read(pid).decode().split("\\n") if line.startswith("0::")))
"""
JOIN = 'echo $$ > "$1/cgroup.procs"; shift; exec "$@"'


@pytest.fixture
def cgroups() -> Iterator[list[Path]]:
    """Two cgroups of version 2, one of them a level deeper."""
    mounts = Path("/proc/self/mounts").read_text().split("\n")
    mount = next((line.split()[1] for line in mounts if " cgroup2 " in line), "")
    if not mount:
        pytest.skip("no cgroup2 file system is mounted")
    top = Path(mount, f"tickscope-test-{os.getpid()}")
    made = [top, top / "one", top / "two", top / "two/inner"]
    try:
        for one in made:
            one.mkdir()
        yield [made[1], made[3]]
    finally:
        for one in reversed(made):
            with contextlib.suppress(OSError):
                one.rmdir()


def inside(cgroup: Path, *command: str) -> list[str]:
    return ["sh", "-c", JOIN, "sh", str(cgroup), *command]


def test_paths_are_those_of_the_host(cgroups: list[Path]) -> None:
    own, others = cgroups
    with subprocess.Popen(inside(others, "sleep", "60")) as neighbour:
        try:
            until(lambda: "/two/inner" in Path(f"/proc/{neighbour.pid}/cgroup").read_text())
            reader = inside(own, "unshare", "-C", sys.executable, "-c", READ, "1", str(os.getpid()), str(neighbour.pid))
            read = subprocess.run(reader, check=True, capture_output=True, text=True).stdout.split("\n")
            on_host = [
                next(line for line in Path(f"/proc/{pid}/cgroup").read_text().split("\n") if line.startswith("0::"))
                for pid in (1, os.getpid(), neighbour.pid)
            ]
            assert read == [*on_host, ""]
        finally:
            neighbour.kill()
