"""Processes in pods of a real containerd, placed by the real helper from their cgroup and the runtime's files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.batch import make
from agent.common.runtimes import RUNTIME_FILES, RuntimeFile
from agent.kernel import helper as server
from agent.kernel import opening
from agent.kernel.helper_client import start
from agent.posix.child import fork
from agent.service.containers import Containers
from tests.servers.containerd import Containerd, pid_in

NOBODY = 65534
FORGED = {
    "io.kubernetes.cri.sandbox-name": "victim",
    "io.kubernetes.cri.container-name": "victim",
    "io.kubernetes.pod.name": "victim",
}


@pytest.fixture
def containerd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Containerd]:
    with Containerd(tmp_path, FORGED) as one:
        files = (RuntimeFile("containerd", str(one.tasks)), *RUNTIME_FILES[1:])
        monkeypatch.setattr(opening, "RUNTIME_FILES", files)
        yield one


def test_each_process_is_in_its_own_pod_whatever_its_author_says(containerd: Containerd) -> None:
    helper = start(fork("helper", server.serve), NOBODY, NOBODY, "")
    try:
        containers = Containers(helper.cgroup_path, helper.runtime_file)
        pids, ids = [], []
        for name in ("api-7c9d", "api-x2x4"):
            sandbox, container = containerd.pod("shop", name, "api", f"/tickscope-test-{os.getpid()}/pod-{name}")
            pids += [pid_in(container), pid_in(sandbox)]
            ids += [container, sandbox]
        rows = make("tcp_connect", 4, pid=pids, proc_start_ns=1)
        containers.fill(rows)
        assert [one.decode() for one in rows.rows["container_id"]] == ids
        (reported,) = containers.drain(1)
        names = {row["container_id"].decode(): row for row in reported.rows}
        shown = [tuple(names[one][name].decode() for name in ("namespace", "pod", "container_name")) for one in ids]
        assert shown == [
            ("shop", "api-7c9d", "api"),
            ("shop", "api-7c9d", ""),
            ("shop", "api-x2x4", "api"),
            ("shop", "api-x2x4", ""),
        ]
        assert (names[ids[0]]["image"], names[ids[0]]["pod_uid"]) == (b"localhost/shop:1.4", b"uid-of-api-7c9d")
        found = make("finding", 1, finding_id=b"f", impacted_pid=pids[0], culprit_pid=pids[2])
        containers.place(found)
        assert [found.rows[name][0] for name in ("pod", "culprit_pod")] == [b"api-7c9d", b"api-x2x4"]
    finally:
        helper.close()
