"""Runs the loader and receives what it attached. Called while still root; does not import bcc."""

from __future__ import annotations

import array
import contextlib
import json
import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agent.errors import PRIVILEGE, AgentError
from agent.kernel.loader_process import TIMEOUT_S, begin
from agent.kernel.probe import Probe, ordered
from agent.kernel.wire_structs import Wire, WireError
from agent.posix.supervisor import Supervised

BPF_DIR = Path(__file__).resolve().parents[2] / "bpf"
_MAX_FDS = 256
#: Number of rings, aggregation maps and families' ``counts``; each has an element of the map ``lost``.
LOST_COUNTERS = 64
_HOST_PID_NAMESPACE = 0xEFFFFFFC


@dataclass
class Family:
    """A loaded family. Descriptors by name: ``maps``, ``programs`` (for the helper to attach), ``links`` (closing
    detaches).
    """

    probe: Probe
    state: str = "unavailable"
    reason: str = ""
    remedy: str = ""
    maps: dict[str, int] = field(default_factory=dict)
    programs: dict[str, int] = field(default_factory=dict)
    links: dict[str, int] = field(default_factory=dict)
    plan: list[dict[str, object]] = field(default_factory=list)
    _problems: dict[str, tuple[str, str]] = field(default_factory=dict)
    _without: tuple[str, str, str] = ("", "", "")

    def problem(self, key: str, reason_text: str, remedy: str = "") -> None:
        """Degrades the family until ``well`` is called with the same key."""
        if not self._problems:
            self._without = self.state, self.reason, self.remedy
        if self._problems.get(key) != (reason_text, remedy):
            self._problems[key] = reason_text, remedy
            self._settle()

    def well(self, key: str) -> None:
        """Ends the problem with that key, if there is one."""
        if self._problems.pop(key, None) is not None:
            self._settle()

    def _settle(self) -> None:
        state, reason, remedy = self._without
        self.state = "degraded" if self._problems and state == "attached" else state
        self.reason = "; ".join(filter(None, (reason, *(reason_text for reason_text, _ in self._problems.values()))))
        self.remedy = remedy or next((r for _, r in self._problems.values() if r), "")


@dataclass
class Loaded:
    """The loader's result. ``shared`` are the maps of bpf/tickscope.h, empty if nothing could be loaded.

    uprobe_multi: whether uprobes are attached by links that need no CAP_SYS_ADMIN. counted: names of the loss counters;
    the i-th has element i of the shared map ``lost``.
    """

    families: dict[str, Family]
    wire: Wire
    counted: list[str]
    shared: dict[str, int] = field(default_factory=dict)
    words: dict[str, int] = field(default_factory=dict)
    uprobe_multi: bool = False


def maps_of(probe: Probe) -> list[str]:
    """Names of the family's maps that user space needs."""
    return [*_own_maps(probe), *(a.sums for a in probe.aggregates if a.sums), *probe.maps]


def _own_maps(probe: Probe) -> list[str]:
    return [r.map for r in probe.rings] + [m for a in probe.aggregates for m in a.maps]


def loss_counted(probe: Probe) -> list[str]:
    """Names of the family's loss counters: its maps, and its ``counts``."""
    return [*_own_maps(probe), *probe.counts]


def _structs_of(probe: Probe) -> list[str]:
    return sorted({r.wire for r in probe.rings} | {n for a in probe.aggregates for n in (a.key, a.value)})


def _assertions(wire: Wire, probe: Probe) -> str:
    try:
        return wire.assertions(_structs_of(probe))
    except WireError as error:
        raise AgentError(
            f"probe {probe.name}: {error}", remedy=f"correct bpf/{' or bpf/'.join(probe.sources)}"
        ) from error


def on_the_host() -> bool:
    """Whether this process is in the host's PID namespace. In another one, what threads wait for since before the
    agent's start is not seen.
    """
    return os.stat("/proc/self/ns/pid").st_ino == _HOST_PID_NAMESPACE


def _pid_namespace() -> list[str]:
    """Compiler flags that make the programs use this PID namespace's process numbers, if it is not the host's
    (include/linux/proc_ns.h).
    """
    return [] if on_the_host() else [f"-DPIDNS_INUM={os.stat('/proc/self/ns/pid').st_ino}u"]


def _job(probes: list[Probe], options: Mapping[str, int], bpf_dir: Path, btf: str) -> tuple[dict[str, object], Wire]:
    for probe in probes:
        for source in probe.sources:
            if not (bpf_dir / source).exists():
                raise AgentError(f"{bpf_dir / source} does not exist", why=f"it is a BPF source of probe {probe.name}")
    wire = Wire.read(bpf_dir / "events.h", bpf_dir / "tickscope.h", *(bpf_dir / s for p in probes for s in p.sources))
    chosen = {name: options.get(name, value) for p in probes for name, value in p.options.items()}
    counted = [m for p in probes for m in loss_counted(p)]
    if len(counted) > LOST_COUNTERS:
        raise ValueError(
            f"{len(counted)} maps want a counter of what they lose, there are {LOST_COUNTERS}: raise LOST_COUNTERS"
        )
    job: dict[str, object] = {
        "prelude": str(bpf_dir / "tickscope.h"),
        "sources": {p.name: [str(bpf_dir / s) for s in p.sources] for p in probes},
        "include": str(bpf_dir / "include"),
        "btf": btf,
        "cflags": [
            f"-I{bpf_dir}",
            *_pid_namespace(),
            *(
                f"-D{k}={v}"
                for k, v in (
                    *chosen.items(),
                    ("LOST_COUNTERS", LOST_COUNTERS),
                    *(("LOST_" + m, i) for i, m in enumerate(counted)),
                )
            ),
        ],
        "after": {p.name: p.after for p in probes},
        "behind": {p.name: p.text + _assertions(wire, p) for p in probes},
        "families": [
            {"name": p.name, "maps": maps_of(p), "programs": [vars(program) for program in p.programs]} for p in probes
        ],
    }
    return job, wire


class Loading:
    """Programs that are being compiled, loaded and attached; ``finish`` waits for them.

    loader: a process that was started before. Raises AgentError for BPF sources that are missing or have wrong wire
    structs; ValueError for families with a circular order, or with more maps than counters.
    """

    def __init__(
        self,
        families: Iterable[Probe],
        options: Mapping[str, int] | None = None,
        *,
        bpf_dir: Path = BPF_DIR,
        btf: str = "/sys/kernel/btf/vmlinux",
        loader: Supervised | None = None,
    ) -> None:
        self._probes = ordered(families)
        self._job, self._wire = _job(self._probes, options or {}, bpf_dir, btf)
        self._loader = loader or begin()
        self._send()

    def _send(self) -> None:
        if self._loader.socket is not None:
            with contextlib.suppress(OSError):  # it has ended, which its socket shows
                self._loader.socket.send(json.dumps(self._job).encode())

    def finish(self) -> Loaded:
        """Waits for the loader. A loader that fails is run once more, and then compiles each family by itself first.

        Families that cannot be attached are ``unavailable`` with the reason. Only a missing BCC or missing privileges
        raise AgentError (exit code 5).
        """
        while not self._received(loaded := self._fresh()):
            release(loaded)
            if self._loader.restarts.given_up:
                for family in loaded.families.values():
                    family.reason = f"the loader failed twice: {self._loader.restarts.why}"
                    family.remedy = "restart tickscope; see its log"
                break
            self._loader.start()
            self._job["again"] = True
            self._send()
        return loaded

    def _fresh(self) -> Loaded:
        counted = [m for p in self._probes for m in loss_counted(p)]
        return Loaded({p.name: Family(p) for p in self._probes}, self._wire, counted)

    def _received(self, loaded: Loaded) -> bool:
        """Whether the loader has sent everything; otherwise it is gone."""
        try:
            while self._loader.socket is not None and _receive(self._loader.socket, loaded):
                pass
            return self._loader.socket is not None
        except TimeoutError:
            self._loader.fail(f"it took longer than {TIMEOUT_S:g} s")
        except (EOFError, OSError):
            self._loader.wait(TIMEOUT_S)
        finally:
            self._loader.close()
        return False


def load(families: Iterable[Probe], options: Mapping[str, int] | None = None, *, bpf_dir: Path = BPF_DIR) -> Loaded:
    """Compiles, loads and attaches, and waits for it (``Loading``)."""
    return Loading(families, options, bpf_dir=bpf_dir).finish()


def release(loaded: Loaded) -> None:
    """Closes every descriptor that the loader handed over."""
    for family in loaded.families.values():
        for fd in [*family.links.values(), *family.programs.values(), *family.maps.values()]:
            os.close(fd)
        family.maps, family.programs, family.links = {}, {}, {}
    for fd in loaded.shared.values():
        os.close(fd)
    loaded.shared = {}


def _receive(sock: socket.socket, loaded: Loaded) -> bool:
    """Receives one message; False after the last."""
    data, ancillary, _, _ = sock.recvmsg(1 << 20, socket.CMSG_SPACE(4 * _MAX_FDS), socket.MSG_CMSG_CLOEXEC)
    if not data:
        raise EOFError("it closed its socket early")
    fds = array.array("i")
    for level, kind, raw in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(raw[: len(raw) - len(raw) % fds.itemsize])
    message = json.loads(data)
    if "error" in message:
        raise AgentError(
            "cannot load BPF programs", why=message["error"], remedy=message["remedy"], exit_code=PRIVILEGE
        )
    for entry, fd in zip(message.get("fds", []), fds, strict=True):
        if entry["family"]:
            family = loaded.families[entry["family"]]
            {"map": family.maps, "program": family.programs, "link": family.links}[entry["kind"]][entry["name"]] = fd
        else:
            loaded.shared[entry["name"]] = fd
    for done in message.get("done", []):
        family = loaded.families[done["name"]]
        family.state, family.reason, family.remedy, family.plan = (
            done["state"],
            done["reason"],
            done["remedy"],
            done["programs"],
        )
    loaded.words = message.get("words", loaded.words)
    loaded.uprobe_multi = message.get("uprobe_multi", loaded.uprobe_multi)
    return "done" not in message
