"""What this host can and cannot do, each with its remedy. Reads only; every check is one function."""

from __future__ import annotations

import ctypes as ct
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from agent.clock import timens
from agent.clock.daemons.daemon_source import synchronised_now
from agent.clock.daemons.present import running
from agent.clock.daemons.settings import NtpSettings
from agent.common.credentials import load_credentials
from agent.config import resolve
from agent.errors import AgentError
from agent.kernel.loader_process import SYSTEM_PYTHON
from agent.posix import privilege, proc
from agent.queues.catalogue import broker
from agent.queues.queue import Queue


class Check(NamedTuple):
    """id; state ok, warn or fail; what was found; what to do about it."""

    id: str
    state: str
    found: str
    remedy: str = ""


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def root() -> Check:
    missing = privilege.missing_capabilities()
    if os.geteuid() != 0:
        return Check(
            "root",
            "fail",
            f"uid {os.geteuid()}",
            "run as root: sudo tickscope run (privileges are dropped after the start)",
        )
    if missing:
        return Check(
            "root",
            "fail",
            f"root without {', '.join(missing)}",
            "run outside of the container, or give it --privileged",
        )
    return Check("root", "ok", "uid 0, with the capabilities to load and attach BPF programs")


def kernel() -> Check:
    release = os.uname().release
    version = tuple(int(n) for n in re.findall(r"\d+", release)[:2])
    if version < (5, 8):
        return Check("kernel", "fail", release, "boot Linux 5.8 or newer: BPF ring buffers need it")
    if version < (5, 19):
        return Check(
            "kernel",
            "warn",
            f"{release}: the agent keeps CAP_BPF, because reading maps without it needs Linux 5.19",
            "boot Linux 5.19 or newer",
        )
    return Check("kernel", "ok", release)


def btf() -> Check:
    size = os.path.getsize("/sys/kernel/btf/vmlinux") if os.path.exists("/sys/kernel/btf/vmlinux") else 0
    if not size:
        return Check(
            "btf",
            "fail",
            "no /sys/kernel/btf/vmlinux",
            "use a kernel built with CONFIG_DEBUG_INFO_BTF=y (Debian's are)",
        )
    return Check("btf", "ok", f"/sys/kernel/btf/vmlinux, {size / 2**20:.1f} MiB")


def bcc() -> Check:
    code = "import bcc; print(getattr(bcc, 'BPF', None) is not None, getattr(bcc, '__version__', '?'))"
    try:
        done = subprocess.run(
            [SYSTEM_PYTHON, "-I", "-c", code], capture_output=True, text=True, timeout=30, check=False
        )
    except OSError as error:
        return Check("bcc", "fail", f"{SYSTEM_PYTHON}: {error.strerror}", "apt install python3 python3-bpfcc")
    if done.returncode:
        return Check("bcc", "fail", f"{SYSTEM_PYTHON} cannot import bcc", "apt install python3-bpfcc")
    right, version = done.stdout.split()
    if right != "True":
        return Check(
            "bcc",
            "fail",
            "the system's `bcc` is the unrelated package from PyPI",
            f"{SYSTEM_PYTHON} -m pip uninstall bcc; apt install python3-bpfcc",
        )
    return Check("bcc", "ok", f"BCC {version}")


def wrong_bcc() -> Check:
    """PyPI's package of the same name in our own environment does no harm, but shows a misunderstanding."""
    from importlib import metadata

    try:
        found = metadata.version("bcc")
    except metadata.PackageNotFoundError:
        return Check("pypi-bcc", "ok", "not installed")
    return Check("pypi-bcc", "warn", f"PyPI's unrelated `bcc` {found} is installed here", "pip uninstall bcc")


def lockdown() -> Check:
    mode = re.search(r"\[(\w+)\]", _read("/sys/kernel/security/lockdown"))
    if mode and mode.group(1) == "confidentiality":
        return Check(
            "lockdown",
            "fail",
            "kernel lockdown: confidentiality",
            "boot with lockdown=integrity or without lockdown, so that BPF programs may read kernel memory",
        )
    return Check("lockdown", "ok", mode.group(1) if mode else "not in force")


def paranoid() -> Check:
    value = _read("/proc/sys/kernel/perf_event_paranoid") or "?"
    return Check("perf", "ok", f"kernel.perf_event_paranoid = {value} (the helper holds the capability)")


def uprobes() -> Check:
    if os.path.exists("/sys/bus/event_source/devices/uprobe/type"):
        return Check("uprobes", "ok", "TLS handshakes and Go limiters can be observed")
    return Check(
        "uprobes",
        "warn",
        "no uprobe PMU",
        "boot a kernel with CONFIG_UPROBE_EVENTS=y, to observe TLS handshakes and Go limiters",
    )


def cgroup() -> Check:
    with open("/proc/mounts", errors="backslashreplace") as mounts:
        v2 = [line.split()[1] for line in mounts if " cgroup2 " in line]
    if not v2:
        return Check("cgroup", "warn", "no cgroup v2 tree", "mount cgroup2, so that cgroup_id is known")
    return Check("cgroup", "ok", v2[0])


def processes() -> Check:
    """Whether the agent's user sees the processes of others, tried as the agent does it: in a child that mounts a /proc
    of its own, where root runs this.
    """
    hiding = proc.hidden()
    if not hiding:
        return Check("proc", "ok", "/proc shows the processes of all users")
    if os.geteuid():
        return Check("proc", "warn", f"/proc is mounted with {hiding}", "run doctor as root to see what the agent sees")
    pid = os.fork()
    if not pid:
        status = 1
        try:
            proc.show_all()
            status = int(bool(proc.hidden()))
        finally:
            os._exit(status)
    if os.waitpid(pid, 0)[1]:
        return Check(
            "proc", "warn", f"/proc is mounted with {hiding}: processes of other users are hidden", proc.REMEDY
        )
    return Check("proc", "ok", f"/proc is mounted with {hiding}; the agent uses a /proc of its own that shows all")


def synchronised_daemons() -> list[str]:
    """The time daemons of this host that say, asked now, that they keep its clock."""
    try:
        ntp_config = resolve({}, os.environ).ntp
    except AgentError:  # of the settings another check tells
        ntp_config = NtpSettings()
    return synchronised_now(ntp_config)


def clock() -> Check:
    """STA_UNSYNC of adjtimex(2), or what a time daemon says that does not tell the kernel; and who should see to it."""
    buffer = ct.create_string_buffer(256)
    state = ct.CDLL(None, use_errno=True).adjtimex(buffer)
    status = int.from_bytes(buffer.raw[40:44], "little")
    error_us = int.from_bytes(buffer.raw[24:32], "little", signed=True)
    if state < 0:
        return Check("clock", "warn", "adjtimex failed", "see adjtimex(2)")
    daemons = " and ".join(f"{name} (pid {pid})" for name, pid in running().items())
    if not (state == 5 or status & 0x40):
        return Check(
            "clock", "ok", f"synchronised within {error_us / 1e3:.3g} ms by {daemons or 'an unknown time daemon'}"
        )
    if keepers := synchronised_daemons():
        who = " and ".join(keepers)
        found = f"synchronised by {who}, but not in the kernel's status"
        return Check("clock", "ok", found, "set `rtcsync` in chrony.conf" if "chrony" in keepers else "")
    who = f"though {daemons} runs" if daemons else "and no time daemon runs"
    found = f"not synchronised (maxerror {error_us / 1e6:.3g} s), {who}"
    remedy = (
        "see why: chronyc sources, ntpq -p, timedatectl timesync-status"
        if daemons
        else "start chrony or systemd-timesyncd"
    )
    return Check("clock", "warn", found, remedy)


def time_namespace() -> Check:
    """Programs in others are understood; the agent itself must read the clocks that the kernel programs read."""
    mine = timens.of("self")
    if any(mine):
        return Check(
            "time-namespace",
            "fail",
            f"doctor runs in a time namespace: {timens.words(mine)}",
            "run tickscope in the host's time namespace: nsenter --time=/proc/1/ns/time",
        )
    return Check("time-namespace", "ok", "the host's clocks")


def store(path: str) -> Check:
    existing = path if os.path.isdir(path) else os.path.dirname(path.rstrip("/")) or "/"
    try:
        free = shutil.disk_usage(existing).free
    except OSError as error:
        return Check("store", "fail", f"{existing}: {error.strerror}", "choose another directory with --store")
    if free < 256 << 20:
        return Check(
            "store",
            "warn",
            f"{free / 2**20:.0f} MiB free below {existing}",
            "free space, or lower max_bytes in the settings",
        )
    return Check("store", "ok", f"{path}, {free / 2**30:.1f} GiB free")


def install() -> Check:
    """The agent's children import this package as the service's own user."""
    closed = privilege.closed_to_others()
    if closed:
        return Check(
            "install",
            "fail",
            f"{closed} is not readable by other users",
            "install with ./run.sh (into /opt), or chmod o+x it",
        )
    return Check("install", "ok", str(Path(__file__).parents[1]))


def brokers() -> list[Check]:
    """The servers that the settings name, each asked once, as the agent will do (as its own user, where this is
    root).
    """
    try:
        servers = resolve({}, os.environ).queues.brokers
    except AgentError as error:
        found = ": ".join(filter(None, (error.what, error.why)))
        return [Check("settings", "fail", found, error.remedy or "correct the setting, or remove it")]
    if not any(servers.values()):
        return []
    load_credentials()
    return _ask_brokers(servers) if os.geteuid() else _ask_as_its_own_user(servers)


def unwatched_brokers() -> list[Check]:
    """The brokers that this node listens on or talks to and that the settings do not name. Asks none of them."""
    from agent.queues.discover import discover

    try:
        servers = resolve({}, os.environ).queues.brokers
    except AgentError:  # the settings have a check of their own
        servers = {}
    try:
        found = [one for one in discover(servers) if not one.configured]
    except OSError as error:
        return [Check("queues", "warn", f"cannot list sockets: {error.strerror}")]
    out = []
    for one in found:
        process = f"{one.processes[0].comm} (pid {one.processes[0].pid})" if one.processes else "a process"
        verb = "listens on" if one.how == "listens" else "talks to"
        remedy = f"to watch its queues: {one.setting}" if one.setting else one.lacks
        words = "not watched" if one.supported else "this version cannot watch it"
        out.append(Check("queues", "ok", f"{one.system}: {process} {verb} {one.address}: {words}", remedy))
    return out


def _ask_as_its_own_user(servers: Mapping[str, Sequence[str]]) -> list[Check]:
    ours, theirs = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            privilege.drop(*privilege.known_user())
            os.write(theirs, json.dumps(_ask_brokers(servers)).encode())
        except Exception as error:  # noqa: BLE001 - it is what was found
            broken = [Check("brokers", "fail", f"{type(error).__name__}: {error}", "report this as a bug")]
            os.write(theirs, json.dumps(broken).encode())
        finally:
            os._exit(0)
    os.close(theirs)
    with open(ours, "rb") as answer:
        answer_text = answer.read()
    os.waitpid(pid, 0)
    return (
        [Check(*one) for one in json.loads(answer_text)]
        if answer_text
        else [Check("brokers", "fail", "the process that queries the brokers ended early", "report this as a bug")]
    )


def _ask_brokers(servers: Mapping[str, Sequence[str]]) -> list[Check]:
    out = []
    for name, some in servers.items():
        try:
            out += [_ask_broker(name, queue) for queue in broker(name).sources(some)]
        except Exception as error:  # noqa: BLE001 - a client that cannot be used is what was found
            out.append(Check(name, "fail", f"{type(error).__name__}: {error}", "report this as a bug"))
    return out


def _ask_broker(name: str, queue: Queue) -> Check:
    try:
        rows = queue.poll()
    except Exception as error:  # noqa: BLE001 - whatever a client raises, it is what was found
        return Check(name, "fail", f"{queue.name}: {type(error).__name__}: {error}", "report this as a bug")
    finally:
        queue.close()
    down = next((row for row in rows if row.get("status") == "down"), None)
    if down is not None:
        return Check(
            name, "warn", str(down.get("reason")), f"check whether it runs, and whether the setting {name} is right"
        )
    refused = [row for row in rows if row.get("failure") == "permission"]
    if refused:
        server = next((row for row in refused if not row.get("destination")), refused[0])
        found = f"{queue.name}: {str(server.get('reason')).removeprefix(f'{queue.name}: ')}"
        return Check(
            name, "warn", found, "give the user of the setting these rights; without them, some columns are null"
        )
    return Check(name, "ok", f"{queue.name} answers (rows of queue_lag: {len(rows)})")


def examine(store_dir: str) -> list[Check]:
    """Every check. One that breaks is itself reported as failed."""
    checks: list[Callable[[], Check]] = [
        root,
        kernel,
        btf,
        bcc,
        wrong_bcc,
        lockdown,
        paranoid,
        uprobes,
        cgroup,
        processes,
        clock,
        time_namespace,
        lambda: store(store_dir),
        install,
    ]
    out = []
    for check in checks:
        try:
            out.append(check())
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            out.append(Check(getattr(check, "__name__", "check"), "fail", str(error), "report this as a bug"))
    return out + brokers() + unwatched_brokers()
