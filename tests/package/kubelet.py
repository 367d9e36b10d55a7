"""What a kubelet makes of a pod's specification: messages of CRI (runtime/v1/api.proto), whose fields have numbers.

A field of the specification that is not known here is an error, so that nothing of the chart is left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.servers.containerd import Containerd, Message

#: Modes of namespaces, propagation of mounts, kinds of seccomp profiles.
POD, CONTAINER, NODE = 0, 1, 2
PRIVATE, HOST_TO_CONTAINER = 0, 1
SECCOMP = {"RuntimeDefault": 0, "Unconfined": 1}
#: Of every container that does not ask for other ones (pkg/securitycontext/util.go).
MASKED = "asound acpi kcore keys latency_stats timer_list timer_stats sched_debug scsi"
READ_ONLY = "bus fs irq sys sysrq-trigger"
UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}

SPEC = "serviceAccountName automountServiceAccountToken enableServiceLinks hostPID hostNetwork dnsPolicy nodeSelector"
SPEC += " tolerations containers volumes"
OF_CONTAINER = (
    "name image imagePullPolicy command env securityContext startupProbe livenessProbe resources volumeMounts"
)
SECURITY = "runAsUser allowPrivilegeEscalation readOnlyRootFilesystem capabilities seccompProfile appArmorProfile"
SECURITY += " seLinuxOptions"  # of the last two this node has none


def known(given: dict[str, Any], names: str) -> dict[str, Any]:
    assert set(given) <= set(names.split()), set(given) - set(names.split())
    return given


class Kubelet:
    """A node with files of its own below ``root``. places: other files of it, by their path there."""

    def __init__(self, containerd: Containerd, node: str, root: Path, places: dict[str, str]) -> None:
        self._containerd, self._node, self._root, self._places = containerd, node, root, places

    def run(self, namespace: str, name: str, spec: dict[str, Any], settings: dict[str, Any] | None = None) -> str:
        """Starts a pod of one container, with the network of the node; the id of the container. settings: its
        ConfigMap.
        """
        assert known(spec, SPEC)["hostNetwork"], "there is no other network"
        (container,) = spec["containers"]
        known(container, OF_CONTAINER)
        namespaces = [(1, NODE), (2, NODE if spec.get("hostPID") else CONTAINER), (3, POD)]
        parent = f"/tickscope-test-{os.getpid()}/pod-{name}"
        pod: Message = [
            (1, [(1, name), (2, f"uid-of-{name}"), (3, namespace)]),
            (3, str(self._root)),
            (8, [(1, parent), (2, [(1, namespaces)])]),
        ]
        config: Message = [
            (1, [(1, container["name"])]),
            (2, [(1, container["image"])]),
            *((3, word) for word in container.get("command", ())),
            *((6, [(1, variable), (2, value)]) for variable, value in self._environment(container).items()),
            *((7, mount) for mount in self._mounts(spec, container, settings or {})),
            (11, f"{name}.log"),
            (15, [(1, _resources(container)), (2, _security(container.get("securityContext", {}), namespaces))]),
        ]
        return self._containerd.start(pod, config, parent)[1]

    def log(self, name: str) -> str:
        """What the containers of a pod wrote."""
        return (self._root / f"{name}.log").read_text()

    def _environment(self, container: dict[str, Any]) -> dict[str, str]:
        facts, out = {"spec.nodeName": self._node}, dict[str, str]()
        for one in container.get("env", ()):
            value = one["value"] if "value" in one else facts[one["valueFrom"]["fieldRef"]["fieldPath"]]
            out[one["name"]] = re.sub(r"\$\((\w+)\)", lambda found: out[found[1]], value)
        return out

    def _mounts(self, spec: dict[str, Any], container: dict[str, Any], settings: dict[str, Any]) -> Iterator[Message]:
        volumes = {one["name"]: one for one in spec.get("volumes", ())}
        for mount in container.get("volumeMounts", ()):
            known(mount, "name mountPath readOnly mountPropagation")
            propagation = HOST_TO_CONTAINER if mount.get("mountPropagation") == "HostToContainer" else PRIVATE
            yield [
                (1, mount["mountPath"]),
                (2, str(self._volume(volumes[mount["name"]], settings))),
                (3, int(mount.get("readOnly", False))),
                (5, propagation),
            ]

    def _volume(self, volume: dict[str, Any], settings: dict[str, Any]) -> Path:
        """Its files on the node."""
        if "configMap" in volume:
            assert volume["configMap"]["name"] == settings["metadata"]["name"]
            folder = self._root / volume["name"]
            folder.mkdir(exist_ok=True)
            for name, text in settings["data"].items():
                (folder / name).write_text(text)
            return folder
        path, kind = volume["hostPath"]["path"], volume["hostPath"]["type"]
        if kind != "DirectoryOrCreate":
            there = Path(self._places.get(path, path))
            assert {"Directory": there.is_dir, "File": there.is_file}[kind](), f"{there} is no {kind}"
            return there
        there = self._root / path.lstrip("/")
        there.mkdir(parents=True, exist_ok=True)
        return there


def _resources(container: dict[str, Any]) -> Message:
    memory = container.get("resources", {}).get("limits", {}).get("memory")
    return [(4, int(memory[:-2]) * UNITS[memory[-2:]])] if memory else []


def _security(context: dict[str, Any], namespaces: Message) -> Message:
    capabilities = known(context, SECURITY).get("capabilities", {})
    return [
        (1, [*((1, one) for one in capabilities.get("add", ())), *((2, one) for one in capabilities.get("drop", ()))]),
        (3, namespaces),
        *((5, [(1, context[name])]) for name in ("runAsUser",) if name in context),
        (7, int(context.get("readOnlyRootFilesystem", False))),
        (11, int(not context.get("allowPrivilegeEscalation", True))),
        *((13, path) for path in (*(f"/proc/{name}" for name in MASKED.split()), "/sys/firmware")),
        *((14, f"/proc/{name}") for name in READ_ONLY.split()),
        (15, [(1, SECCOMP[context.get("seccompProfile", {}).get("type", "Unconfined")])]),
    ]
