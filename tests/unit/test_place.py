"""Where a process runs: units and containers in real cgroup paths, and what runtimes' files may claim."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent.common import runtimes
from agent.common.places import ProcessPlace
from agent.common.runtimes import RUNTIME_FILES, RuntimeFile
from agent.kernel import opening
from agent.service.containers import MOST_BYTES, Containers
from agent.service.place import Cgroup, cgroups_of, container_of, names_of, unit_of

ID, OTHER = "5eaf00d5" * 8, "0ddba115" * 8
POD = "pod4f1c2d3e-0000-4000-8000-000000000001"
SLICE = f"kubepods-burstable-{POD.replace('-', '_')}.slice"


@pytest.mark.parametrize(
    ("path", "unit", "container"),
    [
        # systemd
        ("/system.slice/ssh.service", "ssh.service", ""),
        ("/system.slice/system-getty.slice/getty@tty1.service", "getty@tty1.service", ""),
        (
            r"/system.slice/system-systemd\x2dfsck.slice/systemd-fsck@dev-disk-by\x2duuid-1A.service",
            r"systemd-fsck@dev-disk-by\x2duuid-1A.service",
            "",
        ),
        ("/system.slice/postgresql@15-main.service/payload", "postgresql@15-main.service", ""),
        ("/system.slice/_cgroup.service", "cgroup.service", ""),
        ("/init.scope", "init.scope", ""),
        ("/user.slice/user-1000.slice/session-3.scope", "session-3.scope", ""),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/shop.service", "user@1000.service", ""),
        ("/machine.slice/systemd-nspawn@web.service/payload/system.slice/x.service", "systemd-nspawn@web.service", ""),
        ("/", "", ""),
        ("/system.slice", "", ""),
        ("/batch/x.service", "", ""),  # not below slices: not systemd's
        ("/../../system.slice/ssh.service", "ssh.service", ""),  # as seen from a cgroup namespace
        # Docker, Podman: by systemd, by cgroupfs
        (f"/system.slice/docker-{ID}.scope", "", ID),
        (f"/docker/{ID}", "", ID),
        (f"/docker/{ID}/system.slice/ssh.service", "", ID),
        (f"/machine.slice/libpod-{ID}.scope/container", "", ID),
        (f"/libpod_parent/libpod-{ID}", "", ID),
        (f"/system.slice/web.service/libpod-payload-{ID}", "web.service", ID),
        (f"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope", "user@1000.service", ID),
        # Kubernetes with containerd, CRI-O: by systemd, by cgroupfs
        (f"/kubepods.slice/kubepods-burstable.slice/{SLICE}/cri-containerd-{ID}.scope", "", ID),
        (f"/kubepods.slice/kubepods-burstable.slice/{SLICE}/crio-{ID}.scope", "", ID),
        (f"/kubepods/burstable/{POD}/{ID}", "", ID),
        (f"/kubepods/{POD}/crio-{ID}", "", ID),
        (f"/system.slice/containerd.service/{SLICE}:cri-containerd:{ID}", "containerd.service", ID),
        # Nested: the outer runtime is the host's
        (f"/docker/{OTHER}/docker/{ID}", "", OTHER),
        (f"/kubepods/besteffort/{POD}/{OTHER}/kubepods/burstable/podx/{ID}", "", OTHER),
        (f"/docker/{ID}0", "", ""),
    ],
)
def test_unit_and_container_of_a_path(path: str, unit: str, container: str) -> None:
    """In version 2, and in version 1 where each controller has a line."""
    v1 = f"12:cpu,cpuacct:{path}\n5:memory:{path}\n1:name=systemd:{path}\n0::/\n"
    for cgroups in (
        cgroups_of(f"0::{path}\n".encode()),
        [Cgroup.at(f"/sys/fs/cgroup{path}".encode())],
        cgroups_of(v1.encode()),
    ):
        assert (unit_of(cgroups).decode(), container_of(cgroups)[0].decode()) == (unit, container)


@pytest.mark.parametrize(
    ("text", "above"),
    [
        (f"0::/kubepods/{POD}/{ID}\n", f"/sys/fs/cgroup/kubepods/{POD}"),
        (f"5:cpu,cpuacct:/docker/{ID}\n1:name=systemd:/\n0::/\n", "/sys/fs/cgroup/cpu,cpuacct/docker"),
        (f"1:name=systemd:/docker/{ID}\n0::/\n", "/sys/fs/cgroup/systemd/docker"),
    ],
)
def test_the_directory_above_a_container(text: str, above: str) -> None:
    assert container_of(cgroups_of(text.encode()))[1].decode() == above


CRI = {
    "io.kubernetes.cri.container-name": "api",
    "io.kubernetes.cri.image-name": "shop:1.4",
    "io.kubernetes.cri.sandbox-name": "api-7c9d",
    "io.kubernetes.cri.sandbox-namespace": "shop",
    "io.kubernetes.cri.sandbox-uid": "4f1c",
}
CRIO = {
    "io.container.manager": "cri-o",
    "io.kubernetes.container.name": "api",
    "io.kubernetes.cri-o.ImageName": "shop:1.4",
    "io.kubernetes.pod.name": "api-7c9d",
    "io.kubernetes.pod.namespace": "shop",
    "io.kubernetes.pod.uid": "4f1c",
}
WHOLE = ProcessPlace(b"", ID.encode(), b"api", b"shop:1.4", b"api-7c9d", b"shop", b"4f1c")
#: As an image's label, or a pod's annotation.
FORGED = {"io.kubernetes.cri.sandbox-name": "victim", "io.kubernetes.pod.name": "victim"}


@pytest.mark.parametrize(
    ("kind", "document", "found"),
    [
        ("containerd", {"annotations": CRI}, WHOLE),
        ("containerd", {"annotations": {}, "process": {"env": [json.dumps(CRI)]}, **FORGED}, None),
        ("crio", {"annotations": {**FORGED, **CRIO}}, WHOLE),
        ("crio", {"annotations": {"io.container.manager": "libpod", **FORGED}}, None),
        (
            "podman",
            [{"id": OTHER, "names": ["x"]}, {"id": ID, "names": ["web"], "metadata": '{"image-name": "shop:1.4"}'}],
            ProcessPlace(container_id=ID.encode(), container_name=b"web", image=b"shop:1.4"),
        ),
        ("podman", [{"id": OTHER, "names": ["x"]}], None),
        (
            "docker",
            {"Name": "/web", "Config": {"Image": "shop:1.4", "Labels": FORGED}},
            ProcessPlace(container_id=ID.encode(), container_name=b"web", image=b"shop:1.4"),
        ),
        # Not of the form that the runtime writes
        *((kind, 7, None) for kind in ("containerd", "crio", "podman", "docker")),
        ("containerd", {"annotations": {"io.kubernetes.cri.sandbox-name": ["x"]}}, None),
        ("docker", {"Name": 7, "Config": []}, None),
        ("podman", [7, {"id": ID, "names": {}, "metadata": "{"}], None),
    ],
)
def test_names_are_those_that_the_runtime_writes(kind: str, document: Any, found: ProcessPlace | None) -> None:
    expected = found and found._replace(runtime=kind.encode())
    assert names_of(kind, ID, json.dumps(document).encode()) == expected


def test_names_are_cut_and_of_any_characters() -> None:
    given = {"annotations": {**CRI, "io.kubernetes.cri.sandbox-name": "\ud800\u202e" + "x" * 400}}
    found = names_of("containerd", ID, json.dumps(given).encode())
    assert found is not None and len(found.pod) == 253 and found.pod.startswith("?\u202ex".encode())


HOSTILE: dict[str, Callable[[Path], object]] = {
    "huge": lambda path: path.write_bytes(json.dumps({"annotations": CRI, "x": "y" * MOST_BYTES}).encode()),
    "deep": lambda path: path.write_bytes(b"[" * MOST_BYTES),
    "wide": lambda path: path.write_bytes(b"[" + b'{"":0},' * (MOST_BYTES // 8) + b"0]"),
    "empty": lambda path: path.write_bytes(b""),
    "no text": lambda path: path.write_bytes(b"\xff\xfe\x00"),
    "symbolic link": lambda path: path.symlink_to(_other(path)),
    "FIFO": os.mkfifo,
    "directory": lambda path: path.mkdir(),
    "of a user": lambda path: (path.write_bytes(json.dumps({"annotations": CRI}).encode()), os.chown(path, 1000, 1000)),
}


def _other(path: Path) -> Path:
    real = path.with_name("real.json")
    real.write_text(json.dumps({"annotations": CRI}))
    return real


@pytest.fixture
def one_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of container ID, of the only runtime. Needs root, as the helper's files are root's."""
    files = (RuntimeFile("containerd", str(tmp_path)),)
    for module in (runtimes, opening):
        monkeypatch.setattr(module, "RUNTIME_FILES", files)
    monkeypatch.setattr("agent.service.containers.RUNTIME_FILES", files)
    (tmp_path / ID).mkdir()
    return tmp_path / ID / "config.json"


def opener(number: int, container_id: str) -> int:
    return opening.open_runtime_file(number, container_id.encode())


def at(path: str) -> tuple[Callable[[int], str], Callable[[int, str], int]]:
    return lambda _: path, opener


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_gives_no_names_and_takes_no_time(one_runtime: Path, name: str) -> None:
    HOSTILE[name](one_runtime)
    start_s = time.monotonic()
    assert Containers(*at(f"/sys/fs/cgroup/../../../docker/{ID}"))._from_files(ID) in (
        None,
        ProcessPlace(container_id=ID.encode()),
    )
    assert time.monotonic() - start_s < 1


@pytest.mark.parametrize("container_id", ["", "../" + ID[3:], ID[:63] + "/", ID + "0", ID.upper()])
def test_only_ids_of_containers_are_opened(one_runtime: Path, container_id: str) -> None:
    one_runtime.write_text("{}")
    with pytest.raises(OSError, match="no such file of a runtime"):
        opener(0, container_id)
    with pytest.raises(OSError, match="no such file of a runtime"):
        opener(len(RUNTIME_FILES), ID)


def test_a_user_s_cgroup_cannot_claim_a_container_of_the_runtime(one_runtime: Path, tmp_path: Path) -> None:
    """The directory above it is the user's: neither the pod nor the id is believed. Unknown ids may be a user's own."""
    one_runtime.write_text(json.dumps({"annotations": CRI}))
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    found = Containers(*at(f"{tmp_path}/docker-{ID}.scope"))._of_cgroup(1)
    assert (found.pod, found.container_name) == (b"api-7c9d", b"api")
    os.chown(theirs, 1000, 1000)
    for path, expected in ((f"{theirs}/docker-{ID}.scope", b""), (f"{theirs}/docker-{OTHER}.scope", OTHER.encode())):
        claimed = Containers(*at(path))._of_cgroup(1)
        assert (claimed.pod, claimed.container_id) == (b"", expected)
