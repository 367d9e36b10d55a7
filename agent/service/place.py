"""Where a process runs: its systemd unit and its container, from the path of its cgroup and the files of container
runtimes. Pure.

A cgroup's path and a container's names are texts of others. What is believed: of a path, what only root could create
(the unit below slices, the outermost container); of a file, what the runtime itself writes. An image's labels and a
pod's annotations can say anything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from agent.columns import fitted
from agent.common.places import ProcessPlace
from agent.tables import TABLES

MOUNT = b"/sys/fs/cgroup"
_CONTAINER = re.compile(rb"(?:[\w.:-]*[-:])?([0-9a-f]{64})(?:\.scope)?")
_UNIT = re.compile(rb"[\w:.\\@-]+\.(?:service|scope|socket|mount|swap)")
_COLUMNS = TABLES["container"].by_name


class Cgroup(NamedTuple):
    """mount: where its hierarchy is mounted. path: below that, absolute."""

    mount: bytes
    path: bytes

    @classmethod
    def at(cls, directory: bytes) -> Cgroup:
        """Of version 2, from the path of its directory."""
        mount = next((m for m in (MOUNT + b"/unified", MOUNT) if directory.startswith(m + b"/")), b"")
        return cls(mount, directory[len(mount) :])

    def unit(self) -> bytes:
        """As systemd has it: the first part of the path below slices. Empty if that is no unit, or a container."""
        parts = (part for part in self.path.split(b"/") if part not in (b"", b".."))
        first = next((part for part in parts if not part.endswith(b".slice")), b"")
        named = first.removeprefix(b"_")  # systemd's escape of names that the kernel has for its own files
        return named if _UNIT.fullmatch(named) and not _CONTAINER.fullmatch(named) else b""

    def container(self) -> tuple[bytes, bytes]:
        """(id, directory that contains its cgroup) of the outermost container; both empty if there is none. What a
        container has made below its own cgroup is the container, too.
        """
        parts = self.path.split(b"/")
        for at, part in enumerate(parts):
            if match := _CONTAINER.fullmatch(part):
                return match.group(1), self.mount + b"/".join(parts[:at])
        return b"", b""


def cgroups_of(text: bytes) -> list[Cgroup]:
    """From the text of /proc/PID/cgroup, those that systemd names first."""
    lines = [parts[1:] for line in text.split(b"\n") if len(parts := line.split(b":", 2)) == 3]
    lines.sort(key=lambda line: line[0] not in (b"", b"name=systemd"))
    hybrid = len(lines) > 1
    unified = MOUNT + b"/unified" if hybrid else MOUNT
    return [Cgroup(MOUNT + b"/" + c.removeprefix(b"name=") if c else unified, path) for c, path in lines]


def unit_of(cgroups: Iterable[Cgroup]) -> bytes:
    return next((found for one in cgroups if (found := one.unit())), b"")


def container_of(cgroups: Iterable[Cgroup]) -> tuple[bytes, bytes]:
    """See ``Cgroup.container``."""
    return next((found for one in cgroups if (found := one.container())[0]), (b"", b""))


#: What a runtime writes itself: annotations of the container's specification.
_CRI = "io.kubernetes.cri."
_ANNOTATIONS = {
    "containerd": {
        "container_name": f"{_CRI}container-name",
        "image": f"{_CRI}image-name",
        "pod": f"{_CRI}sandbox-name",
        "namespace": f"{_CRI}sandbox-namespace",
        "pod_uid": f"{_CRI}sandbox-uid",
    },
    # A pod's own annotations are among these, too. But the kubelet's labels are written last.
    "crio": {
        "container_name": "io.kubernetes.container.name",
        "image": "io.kubernetes.cri-o.ImageName",
        "pod": "io.kubernetes.pod.name",
        "namespace": "io.kubernetes.pod.namespace",
        "pod_uid": "io.kubernetes.pod.uid",
    },
}


def names_of(kind: str, container_id: str, content: bytes) -> ProcessPlace | None:
    """What a runtime's file (agent/common/runtimes.py) says about a container; None if it says nothing about it, also
    if it cannot be parsed.
    """
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return None
    known = {name: value for name, value in _named(kind, container_id, document) if isinstance(value, str) and value}
    if not known:
        return None
    values = {name: fitted(text.encode(errors="replace"), _COLUMNS[name].width) for name, text in known.items()}
    return ProcessPlace(container_id=container_id.encode(), runtime=kind.encode(), **values)


def _named(kind: str, container_id: str, document: Any) -> Iterator[tuple[str, object]]:
    """Column and value."""
    if kind == "podman":
        listed = document if isinstance(document, list) else []
        one = next((one for one in listed if isinstance(one, dict) and one.get("id") == container_id), {})
        names, metadata = one.get("names"), one.get("metadata")
        yield "container_name", names[0] if isinstance(names, list) and names else None
        yield "image", _member(_parsed(metadata), "image-name")
    elif kind == "docker":
        name = _member(document, "Name")
        yield "container_name", name.removeprefix("/") if isinstance(name, str) else None
        yield "image", _member(_member(document, "Config"), "Image")
    else:
        given = _member(document, "annotations")
        if kind == "crio" and _member(given, "io.container.manager") != "cri-o":  # Podman's
            return
        for column, annotation in _ANNOTATIONS[kind].items():
            yield column, _member(given, annotation)


def _member(document: object, name: str) -> object:
    return document.get(name) if isinstance(document, dict) else None


def _parsed(text: object) -> object:
    try:
        return json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
