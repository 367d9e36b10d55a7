"""Where container runtimes keep the files that say what a container is. Only root can write there."""

from __future__ import annotations

from typing import NamedTuple


class RuntimeFile(NamedTuple):
    """A file of each container. kind: of its content (agent/service/place.py). place: below the folder; ``{}`` is the
    container's id.
    """

    kind: str
    folder: str
    place: str = "{}/config.json"


_TASKS = "containerd/io.containerd.runtime.v2.task/k8s.io"
_STORAGE = "containers/storage/overlay-containers"
#: In the order in which they are tried.
RUNTIME_FILES = (
    RuntimeFile("containerd", f"/run/{_TASKS}"),
    RuntimeFile("containerd", f"/run/k3s/{_TASKS}"),  # also of RKE2
    RuntimeFile("containerd", f"/var/snap/microk8s/common/run/{_TASKS}"),
    RuntimeFile("crio", f"/var/lib/{_STORAGE}", "{}/userdata/config.json"),
    RuntimeFile("crio", f"/run/{_STORAGE}", "{}/userdata/config.json"),
    RuntimeFile("podman", f"/var/lib/{_STORAGE}", "containers.json"),
    RuntimeFile("docker", "/var/lib/docker/containers", "{}/config.v2.json"),
)
