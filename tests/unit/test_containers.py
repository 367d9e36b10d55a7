"""Where processes run: remembered by cgroup, asked for again only where that may help, in rows and in findings."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from agent.batch import Batch, make
from agent.common.places import NOWHERE
from agent.probes.exec import STARTED
from agent.service.containers import AGAIN_NS, Containers

ID = "5eaf00d5" * 8


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
def test_a_look_up_that_fails_leaves_the_column_unknown(number: int) -> None:
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


def opened(tmp_path: Path, calls: list[tuple[int, str]]) -> Callable[[int, str], int]:
    """The files of a containerd that has container ID, and of no other runtime."""
    file = tmp_path / "config.json"
    names = {"container-name": "api", "image-name": "shop:1.4", "sandbox-name": "api-7c9d", "sandbox-namespace": "shop"}
    file.write_text(json.dumps({"annotations": {f"io.kubernetes.cri.{k}": v for k, v in names.items()}}))

    def open_file(number: int, container_id: str) -> int:
        calls.append((number, container_id))
        if number or container_id != ID:
            raise FileNotFoundError(errno.ENOENT, "no")
        return os.open(file, os.O_RDONLY)

    return open_file


def test_a_container_is_read_once_and_reported_again_while_it_has_rows(tmp_path: Path) -> None:
    calls: list[tuple[int, str]] = []
    containers = Containers(lambda number: f"{tmp_path}/docker-{ID}.scope/{number}", opened(tmp_path, calls))
    containers.node = "node-7"
    reported = []
    for now_ns in (1, 2, AGAIN_NS, AGAIN_NS + 1, AGAIN_NS + 2):
        containers.fill(rows(now_ns % 7, 3))
        reported.append([row["pod"] for batch in containers.drain(now_ns) for row in batch.rows])
    assert calls == [(0, ID)]
    assert reported == [[b"api-7c9d"], [], [], [b"api-7c9d"], []]
    assert list(containers.drain(9 * AGAIN_NS)) == []


def test_findings_get_the_places_of_both_processes_and_keep_them(tmp_path: Path) -> None:
    paths = {5: f"{tmp_path}/docker-{ID}.scope", 6: "/sys/fs/cgroup/system.slice/chrony.service"}
    containers = Containers(paths.__getitem__, opened(tmp_path, []))

    def seen(pid: int, cgroup: int) -> None:
        containers.fill(make("tcp_connect", 1, pid=pid, proc_start_ns=cgroup, cgroup_id=cgroup))

    def placed() -> np.void:
        batch = make("finding", 1, finding_id=b"f", impacted_pid=1 << 29, culprit_pid=1 << 30)
        containers.place(batch)
        return batch.rows[0]

    seen(1 << 29, 5)
    seen(1 << 30, 6)
    for _ in range(2):
        one = placed()
        assert [one[name] for name in ("namespace", "pod", "container_name", "image", "unit", "container_id")] == [
            *(b"shop", b"api-7c9d", b"api", b"shop:1.4", b""),
            ID.encode(),
        ]
        assert (one["culprit_unit"], one["culprit_pod"]) == (b"chrony.service", b"")
        seen(1 << 29, 6)  # another process got the pid


def test_places_are_known_to_exporters_once_rows_have_passed() -> None:
    containers, calls = asked(lambda _: "/sys/fs/cgroup/system.slice/redis-server.service")
    assert containers.known(1 << 29, 7, 5) == NOWHERE
    containers.fill(rows(5))
    assert containers.known(1 << 29, 7, 5).unit == b"redis-server.service"
    assert containers.known(1 << 29, 7, 9) == NOWHERE
    assert calls == [5]
