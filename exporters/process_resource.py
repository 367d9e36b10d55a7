"""The OTLP resource of an observed process: a service of its own, on the host of the agent's.

https://opentelemetry.io/docs/specs/semconv/resource/service/ and .../non-normative/k8s-attributes/: a pod's service
is what owns the pod (a Deployment, DaemonSet or StatefulSet), which only the pod's name tells here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import numpy as np

from agent.columns import NULL_I64
from agent.common.places import NOWHERE, ProcessPlace
from agent.common.recent import Recent
from agent.tables import TABLES
from exporters.protobuf_pieces import resource
from exporters.span_cells import PROCESS_COLUMNS
from exporters.values import Value, text

#: (pid, start in CLOCK_BOOTTIME ns, cgroup id) -> where it runs.
PlaceOf = Callable[[int, int, int], ProcessPlace]
#: Processes whose resource is kept serialised.
_KEPT = 1024
#: Attributes of the agent, not of its host.
_AGENTS_OWN = re.compile(r"(service|process|container|telemetry)\.|k8s\.(?!node\.|cluster\.)")
#: The letters and digits of the names that Kubernetes makes (k8s.io/apimachinery/pkg/util/rand).
_MADE = "[bcdfghjklmnpqrstvwxz2456789]"
#: A pod of a Deployment, of a DaemonSet or Job, of a StatefulSet: NAME-HASH-xxxxx, NAME-xxxxx, NAME-N.
_POD = re.compile(rf"(.+?)(?:(?:-{_MADE}{{6,10}})?-{_MADE}{{5}}|-\d+)")
#: A unit that says what runs in it. ``user@UID`` is all that a user has.
_SERVICE = re.compile(r"(?!user@)(.+)\.service")
#: By the convention, if nothing is known.
_UNKNOWN = "unknown_service"


class ProcessResources:
    """Serialised resources by row. Used by one thread.

    own: the attributes of the agent's resource (exporters/resource.py). place_of: where a process runs.
    """

    def __init__(self, own: Mapping[str, str], place_of: PlaceOf = lambda *_: NOWHERE) -> None:
        self.own = resource(own.items())
        self._host = {name: value for name, value in own.items() if not _AGENTS_OWN.match(name)}
        self._place_of = place_of
        self._known: Recent[tuple[int, int, int, bytes, bytes], bytes] = Recent(_KEPT)

    def of(self, rows: np.ndarray) -> list[bytes]:
        """The resource of each row's process; the agent's own of rows without one."""
        if "pid" not in (rows.dtype.names or ()):
            return [self.own] * len(rows)
        processes = list(zip(*(rows[name].tolist() for name in PROCESS_COLUMNS), strict=True))
        found = {}
        for process in dict.fromkeys(processes):
            if process not in self._known:
                self._known[process] = self._resource(*process)
            found[process] = self._known[process]
        return [found[process] for process in processes]

    def _resource(self, pid: int, start_ns: int, cgroup: int, comm: bytes, container_id: bytes) -> bytes:
        if pid == NULL_I64 and not comm:
            return self.own
        place = self._place_of(pid, start_ns, cgroup)
        named = process_attributes(pid, cgroup, comm, place._replace(container_id=place.container_id or container_id))
        return resource({**self._host, **named}.items())


def process_attributes(pid: int, cgroup: int, comm: bytes, place: ProcessPlace) -> dict[str, Value]:
    """What tells a process from others, by the names of the conventions."""
    columns = {**TABLES["container"].by_name, **TABLES["slow_syscall"].by_name}
    texts = ((name, text(value)) for name, value in (("comm", comm), *place._asdict().items()))
    known = {name: value for name, value in texts if value}
    pod, namespace = known.get("pod", ""), known.get("namespace", "")
    service = service_name(pod, known.get("container_name", ""), known.get("unit", ""), known.get("comm", ""))
    found: dict[str, Value] = {"service.name": service}
    if namespace:
        found["service.namespace"] = namespace
    if not pod and (container := known.pop("container_name", "")):
        found["container.name"] = container  # by its runtime; k8s.container.name is that of a pod's specification
    found |= {columns[name].attribute: value for name, value in known.items()}
    numbers = (("pid", pid), ("cgroup_id", cgroup))
    return found | {columns[name].attribute: value for name, value in numbers if value != NULL_I64}


def service_name(pod: str, container: str, unit: str, command: str) -> str:
    """What runs there: the pod's owner, else the container, else the unit, else the command."""
    owner = _POD.fullmatch(pod)
    service = _SERVICE.fullmatch(unit)
    return (owner[1] if owner else pod) or container or (service[1] if service else "") or command or _UNKNOWN
