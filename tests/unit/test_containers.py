"""Container ids: out of cgroups' paths, remembered by cgroup, and asked for again only where that may help."""

from __future__ import annotations

import errno
from collections.abc import Callable

import numpy as np
import pytest

from agent.batch import Batch, make
from agent.probes.exec import STARTED
from agent.service.containers import Containers, container_of

ID, OTHER = "5eaf00d5" * 8, "0ddba115" * 8


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (f"/sys/fs/cgroup/system.slice/docker-{ID}.scope", ID),
        (f"/sys/fs/cgroup/docker/{ID}", ID),
        (f"/sys/fs/cgroup/kubepods.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope/init.scope", ID),
        (f"/sys/fs/cgroup/docker/{OTHER}/docker/{ID}", ID),
        (f"12:cpu:/user\n5:memory:/docker/{ID}\n0::/\n", ID),
        (f"/sys/fs/cgroup/docker/{ID}0", ""),
        ("/sys/fs/cgroup/system.slice/ssh.service", ""),
    ],
)
def test_the_id_in_a_path(path: str, found: str) -> None:
    assert container_of(path.encode()).decode() == found


def rows(*cgroups: int) -> Batch:
    return make("tcp_connect", len(cgroups), pid=1 << 29, proc_start_ns=7, cgroup_id=list(cgroups))


def asked(answer: Callable[[int], str]) -> tuple[Containers, list[int]]:
    calls: list[int] = []

    def look_up(number: int) -> str:
        calls.append(number)
        return answer(number)

    return Containers(look_up), calls


def test_a_cgroup_is_looked_up_once_and_outlives_its_processes() -> None:
    containers, calls = asked(lambda number: f"/docker/{ID}" if number == 5 else "/user.slice")
    for _ in range(3):
        batch = rows(5, 5, 9, 5)
        containers.fill(batch)
        assert batch.rows["container_id"].tolist() == [ID.encode(), ID.encode(), b"", ID.encode()]
    assert sorted(calls) == [5, 9]


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EAGAIN, errno.ENOENT])
def test_a_profile_up_that_fails_leaves_the_column_unknown(number: int) -> None:
    """And no further one is made for a while: neither for cgroups that are gone, nor while the helper is busy."""

    def fail(_: int) -> str:
        raise OSError(number, "no")

    containers, calls = asked(fail)
    for _ in range(50):
        batch = rows(5)
        containers.fill(batch)
        assert batch.rows["container_id"].tolist() == [b""]
    assert len(calls) < 10


def test_programs_are_looked_up_as_they_start() -> None:
    containers, calls = asked(lambda _: f"/docker/{ID}")
    started = np.zeros(2, STARTED)
    started["pid"], started["cgroup_id"] = 1 << 29, 7
    containers.on_exec(started)
    assert calls == [7]
    containers.look_up = None
    batch = rows(7)
    containers.fill(batch)
    assert batch.rows["container_id"].tolist() == [ID.encode()]
