"""/proc/PID/cgroup as a process reads it in a cgroup namespace of its own, and what the paths are on the host."""

from __future__ import annotations

import pytest

from agent.common.process_cgroup import absolute
from agent.service.place import cgroups_of, container_of, unit_of

ID, OTHER = "5eaf00d5" * 8, "0ddba115" * 8
BURSTABLE = "/kubepods.slice/kubepods-burstable.slice"
OWN = f"{BURSTABLE}/kubepods-burstable-pod1.slice/cri-containerd-{ID}.scope"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("0::/\n", OWN),
        ("0::/worker\n", f"{OWN}/worker"),
        (f"0::/../{OTHER}\n", f"{BURSTABLE}/kubepods-burstable-pod1.slice/{OTHER}"),
        (f"0::/../../kubepods-burstable-pod2.slice/{OTHER}\n", f"{BURSTABLE}/kubepods-burstable-pod2.slice/{OTHER}"),
        ("0::/../../../../init.scope\n", "/init.scope"),
        ("0::/../../../../system.slice/ssh.service (deleted)\n", "/system.slice/ssh.service (deleted)"),
        ("0::/../../../..\n", "/"),
        ("0::/../../../../../../a\n", "/a"),  # nothing is above the root
    ],
)
def test_paths_are_from_the_root_of_the_hierarchy(text: str, path: str) -> None:
    assert absolute(text.encode(), OWN.encode()) == f"0::{path}\n".encode()


@pytest.mark.parametrize("text", ["0::/../x\n", "12:pids:/docker/x\n0::/docker/x\n", "", "0::"])
def test_outside_of_a_namespace_the_text_is_the_kernel_s(text: str) -> None:
    assert absolute(text.encode(), b"/") == text.encode()


def test_paths_of_version_1_stay() -> None:
    assert absolute(b"4:memory:/../x\n0::/../x\n", b"/a/b") == b"4:memory:/../x\n0::/a/x\n"


def test_a_neighbour_has_its_container_and_a_service_its_unit() -> None:
    """The directory above the container is what a place's owner is checked by."""
    neighbour = f"0::/../../kubepods-burstable-pod2.slice/cri-containerd-{OTHER}.scope\n"
    found = container_of(cgroups_of(absolute(neighbour.encode(), OWN.encode())))
    assert found == (OTHER.encode(), f"/sys/fs/cgroup{BURSTABLE}/kubepods-burstable-pod2.slice".encode())
    assert unit_of(cgroups_of(absolute(b"0::/../../../../system.slice/ssh.service\n", OWN.encode()))) == b"ssh.service"
