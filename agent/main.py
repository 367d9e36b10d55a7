"""Bringing the agent up: the privileged moment, then the processes, then the loop.

Order matters. Helper and clock watch are forked while this process is still small (agent/start.py). The loader
runs and ends. Only then does the agent become its own user without capabilities, and only after that does it read its
first event.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from agent import log
from agent.clock import timens
from agent.common import host, version
from agent.common.lean import without_inspect, without_masked_arrays
from agent.config import Applier, Config, InForce, redis_limiters
from agent.errors import INTERRUPTED, UNREACHABLE, AgentError
from agent.kernel import helper_client
from agent.log import ERROR, INFO, NOTICE, log_message
from agent.posix import background, directories, privilege, proc
from agent.posix.child import Child
from agent.posix.rundir import RunDirectory
from agent.posix.supervisor import Supervised, begun
from agent.posix.systemd import Systemd
from agent.service import control

if TYPE_CHECKING:
    from agent.clock.clock_source import ClockSource
    from agent.clock.daemons.daemon_source import TimeDaemons
    from agent.clock.daemons.settings import NtpSettings
    from agent.contracts import Source
    from agent.correlate.correlator import Correlator
    from agent.kernel.helper_client import Helper
    from agent.kernel.kernel_source import KernelSource
    from agent.kernel.loaded_families import Loaded
    from agent.kernel.probe import Parts
    from agent.queues.poller import QueuePoller
    from agent.service.live import Live
    from agent.service.loop import Loop
    from agent.service.status import Status
    from agent.targets.analyzer_pool import AnalyzerPool
    from agent.targets.targets import Targets


def _families(config: Config) -> list[Any]:
    from agent.probes import discover
    from agent.tables import TABLES

    off = {
        *config.probes.without,
        *{"off": ("syscalls",), "full": ("calls",)}.get(config.probes.syscalls, ()),
        *(("redis",) if config.redis.mode == "off" else ()),
        *(() if config.probes.unix_sockets else ("unix",)),
    }
    found = discover(config.limiters.limiter_functions)
    TABLES.freeze()
    return [
        p for name, p in found.items() if name not in off and not (p.profiling and config.probes.investigate == "off")
    ]


def _kernel_sources(
    config: Config, loaded: Loaded, kernel: KernelSource, helper: Helper, parts: Parts, analyzers: AnalyzerPool
) -> tuple[list[Source], ClockSource, Targets]:
    """The kernel source and what the families add to it. A family whose set-up fails is unavailable; the others run."""
    from agent.clock.clock_source import ClockSource
    from agent.kernel.sampling import SamplingWindow
    from agent.targets.files import raise_soft_limit
    from agent.targets.targets import Targets

    if loaded.shared:
        kernel.control["agent_pid"] = os.getpid()
    raise_soft_limit()
    targets = Targets(helper, kernel, analyzers=analyzers)
    window = SamplingWindow(helper, int(config.probes.syscalls_window_ms * 1e6))
    kernel.hold = lambda: window.busy
    # An interval that is over ends before the window opens, which holds it up.
    sources: list[Source] = [kernel, window, targets, targets.unprobed_programs]
    config = replace(config, redis=redis_limiters(config.redis, config.queues))
    for family in loaded.families.values():
        if family.probe.setup is None or family.state == "unavailable":
            continue
        try:
            settings = config.section(family.probe.settings) if family.probe.settings else None
            own = replace(parts, settings=settings, window=window)
            sources += family.probe.setup(family, kernel, helper, targets, own)
        except Exception as error:  # noqa: BLE001 - one family's fault must not stop the others
            family.state, family.reason = "degraded", f"{type(error).__name__}: {error}"
    targets.start()
    clock = next((source for source in sources if isinstance(source, ClockSource)), None)
    if clock is None:
        clock = ClockSource(parts.watch, parts.history, parts.last)  # without programs: steps have no actor
        sources.append(clock)
    return sources, clock, targets


def _begun(uid: int, gid: int) -> tuple[Supervised, AnalyzerPool]:
    """The processes that take longest to start: they do so while this one imports."""
    from agent.kernel import loader_process
    from agent.targets.analyzer_pool import AnalyzerPool

    loader, analyzers = loader_process.begin(), AnalyzerPool()
    analyzers.begin((uid, gid))
    return loader, analyzers


def _correlator(config: Config) -> Correlator:
    """Also imports most of what ``_assemble`` needs: the loader works meanwhile."""
    from agent.correlate.correlator import Correlator
    from agent.correlate.thresholds import with_threshold

    for module in ("agent.service.status", "agent.service.loop", "agent.targets.targets", "agent.store.hot"):
        import_module(module)
    return Correlator(with_threshold(config.clock.jump_threshold_ns), clock=time.thread_time_ns)


def run(config: Config, to_help: Child, to_watch: Child) -> int:
    """The agent, until a signal or ``duration_s``. Returns the exit status. Raises AgentError before it is ready."""
    started = time.monotonic()
    systemd = Systemd()
    privilege.require_root()
    timens.require_host()
    privilege.require_readable()
    uid, gid = privilege.service_user()
    loader, analyzers = _begun(uid, gid)
    with without_inspect():
        import_module("numpy")
    from agent.clock.subscribers import SUBSCRIBERS
    from agent.clock.watch_process import start as start_watch

    directories.require_answer(config.store.store)
    store_fd = directories.prepare(config.store.store, 0o750, uid, gid)
    sockets = RunDirectory(config.service.run_dir, uid, gid)
    control_socket = sockets.listen("control.sock", 0o660, socket.SOCK_STREAM, control.CLIENTS)
    helper = begun("tickscope-help", helper_client.start, to_help, uid, gid, config.source.get("file", ""))
    watch = begun(
        "tickscope-clock",
        start_watch,
        to_watch,
        sockets.listen("notices.sock", 0o666, socket.SOCK_STREAM, SUBSCRIBERS),
        uid,
        gid,
    )
    hook = None
    if config.clock.notices.exec:
        from agent.clock.hooks import start as start_hook

        hook = start_hook(config.clock.notices, sockets.fd, uid, gid)

    from agent.limiters.intake import bind as bind_intake

    intake_sockets = bind_intake(sockets, config.limiters.key_salt)

    from agent.common.clocks import boot_ns
    from agent.common.credentials import load_credentials
    from agent.investigate.start import kernel_symbols
    from agent.kernel import bpf
    from agent.kernel.loaded_families import Loading
    from agent.posix.signals import Signals
    from agent.queues.older import older_sockets
    from agent.service.reload import Reload

    without_masked_arrays()
    loading = Loading(_families(config), {"SYSCALLS_SLOW_NS": int(config.probes.slow_syscall_ms * 1e6)}, loader=loader)
    correlator = _correlator(config)
    loaded = loading.finish()
    if loaded.uprobe_multi:
        helper.restrict()
    clock = loaded.families.get("clock")
    older = older_sockets()
    load_credentials()
    kallsyms = kernel_symbols(config.probes.investigate != "off")
    watch.begin(clock.maps.get("clock_last", -1) if clock else -1)
    privilege.set_name("tickscope")
    lost = loaded.shared.get("lost", -1)
    background.give_way()
    privilege.drop_unless_needed(uid, gid, privilege.CAP_BPF, lambda: lost < 0 or bpf.allowed(lost))

    loop, status, live, changes = _assemble(
        config,
        store_fd,
        loaded,
        helper,
        watch,
        hook,
        intake_sockets,
        control_socket,
        older,
        kallsyms,
        correlator,
        analyzers,
    )
    reload = Reload(config.source, InForce(config, changes), loop, helper.opening_settings())
    signals = Signals(loop, reload.start, live.draw if live else None)
    status.ready(started)
    attached, degraded = status.counts()
    log_message(
        f"ready attached={attached} degraded={degraded} pid={os.getpid()}",
        INFO,
        event="ready",
        attached=attached,
        degraded=degraded,
        pid=os.getpid(),
    )
    loop.each_second.append(systemd.alive)
    systemd.ready()
    try:
        loop.run(boot_ns() + int(config.duration_s * 1e9) if config.duration_s else 0)
    finally:  # whatever happened: what was taken is stored, and the store ends cleanly
        systemd.stopping()
        loop.finish()
        helper.close()
        watch.close()
        sockets.clear()
        status.farewell()
    if loop.store.stuck:  # systemd is to know
        return UNREACHABLE
    return INTERRUPTED if signal.SIGINT in signals.came else 0


def _assemble(
    config: Config,
    store_fd: int,
    loaded: Loaded,
    helper: Helper,
    watch: Any,
    hook: Any,
    intake_sockets: tuple[socket.socket, ...],
    control_socket: socket.socket,
    older: Any,
    kallsyms: int,
    correlator: Correlator,
    analyzers: AnalyzerPool,
) -> tuple[Loop, Status, Live | None, dict[str, Applier]]:
    """Everything unprivileged: sources, store, correlator, sinks, the control socket and the summary; and what
    settings can change in it.
    """
    from agent.clock import sample
    from agent.clock.history import History
    from agent.clock.last import LastReading
    from agent.clock.notices import NoticeSource
    from agent.correlate.reported import ReportedWaits
    from agent.investigate.start import investigator
    from agent.kernel.kernel_source import KernelSource
    from agent.kernel.probe import Parts
    from agent.limiters import intake as intake_room
    from agent.probes.syscalls import CallsSoFar, WatchedProcesses
    from agent.queues import catalogue
    from agent.queues.message_reports import MessageReports
    from agent.queues.poller_process import BrokerPoller
    from agent.queues.timer_effect import Timers
    from agent.resources.resource_source import Resources
    from agent.resources.spaces import Spaces
    from agent.service.bounds import Bounds
    from agent.service.containers import Containers
    from agent.service.finding_log import FindingLog
    from agent.service.hours_store import HoursStore
    from agent.service.loop import Loop
    from agent.service.reload import appliers
    from agent.service.status import Shown, Status, StatusSettings
    from agent.service.unevaluated import Unevaluated
    from agent.store.hot import HotStore
    from agent.store.spawn import Limits
    from agent.store.writer import Writer
    from exporters.notify import start as start_notifiers
    from exporters.resource import describe
    from exporters.start import start as start_exports

    boot, history = host.boot_id(), History()
    limits = Limits(max_bytes=config.store.max_bytes, max_age_s=config.store.max_age_days * 86400)
    store = Writer(HotStore(store_fd, boot, host.name(), version=version.VERSION, limits=limits), history.wall)
    kernel = KernelSource(loaded)
    parts = Parts(watch=watch, history=history, last=LastReading(store_fd, boot, store.later))
    sources, clock, targets = _kernel_sources(config, loaded, kernel, helper, parts, analyzers)
    answers: dict[str, control.Answer] = {}
    server = control.Control(control_socket, answers)
    intake = intake_room.Intake(
        *intake_sockets,
        keys=config.limiters.intake_keys,
        names=config.limiters.limiter_names,
        messages=MessageReports(),
    )
    notices, queues = NoticeSource(watch, hook), _queues(config.queues.poll_s, loaded, older)
    daemons = _time_daemons(config.ntp, history)
    configured, poll_s = config.queues.brokers, config.queues.poll_s
    timers = Timers(lambda: sample.read().boot_mono_ns)
    answers["timers"] = timers.document
    brokers = [BrokerPoller(kind, configured.get(kind, ()), poll_s, timers) for kind in catalogue.names()]
    receiver = None
    if config.otlp_receiver.http:  # it is not in the memory of others
        from agent.receiver.receiver_process import start as start_receiver

        receiver = start_receiver(config.otlp_receiver, config.limiters, loaded, boot, history)
    clock.daemon_synchronised = lambda: bool(daemons.synchronised())
    resources = Resources()
    sources += [receiver, Bounds(receiver.name, receiver.counts, receiver.reasons)] if receiver is not None else []
    sources += [notices, intake, server, queues, *brokers, daemons, resources, Spaces(helper, resources)]
    sources += [
        Bounds("intake", intake.state, intake_room.REASONS),
        Bounds("control", server.counts, control.REASONS),
    ]
    containers = Containers(helper.cgroup_path, helper.runtime_file)
    containers.node = describe(boot, os.environ, version.VERSION, config.otlp.resource).get("k8s.node.name", "")
    exports = start_exports(config.page, config.otlp, boot, history, containers.known)
    loop = Loop(sources, store, correlator, exports.sinks, containers)
    loop.add(Unevaluated(loop.unevaluated))
    loop.add(HoursStore(correlator, store_fd, boot, store.later))
    loop.add(containers)
    loop.removed.append(kernel.unsubscribe)
    kernel.subscribe("exec_events", containers.on_exec)
    loop.closing += [exports.page] if exports.page else []
    loop.failures.update(exports.missing)
    if hiding := proc.hidden():
        lacks = f"{hiding} hides processes of other users: no Go limiters, no cpu_use of theirs, no TLS in containers"
        loop.failures["/proc"] = f"{lacks}; {proc.REMEDY}"
        log_message(f"tickscope: /proc: {loop.failures['/proc']}", NOTICE)
    if "syscalls" in loaded.families:
        waits = ReportedWaits(WatchedProcesses(loaded.families["syscalls"]), correlator.to_follow)
        loop.filters.append(waits)
        loop.each_second.append(waits.follow_late)
        if "on_syscalls_so_far" in loaded.families["syscalls"].programs:
            loop.add(CallsSoFar(kernel, loaded.families["syscalls"], waits.followed))
    loop.filters += [resources, timers]
    profiling = investigator(kernel, helper, targets, kallsyms, correlator.active_episodes)
    if profiling is not None:
        loop.add(profiling)
        loop.each_second.append(profiling.judged)
    shown = {
        "clock": Shown(clock, clock.state),
        "notices": Shown(notices, notices.state),
        "time_daemons": Shown(daemons, daemons.state),
        "intake": Shown(intake, intake.state),
        "programs": Shown(targets.unprobed_programs, targets.unprobed_programs.reported),
        "analysis": Shown(targets, targets.analysis),
    }
    shown |= {"investigation": Shown(profiling, profiling.state)} if profiling is not None else {}
    shown |= {"otlp_receiver": Shown(receiver, receiver.state)} if receiver is not None else {}
    settings = StatusSettings(config.probes, config.redis.mode, config.store.store, config.page.prometheus)
    status = Status(settings, loop, loaded, helper, watch, history, shown, exports.page)
    loop.each_second.append(status.log_changes)
    answers["status"] = status.document
    if exports.metrics is not None:
        from exporters.observed import StatusMetrics

        loop.each_second.append(StatusMetrics(exports.metrics, version.VERSION, status.parts, exports.page))
    loop.sinks.append(FindingLog(status.wall, config.notify.in_journal if log.journal(os.environ) else ()))
    live = None
    if config.live:
        from agent.service.live import Live

        live = Live(loop, status)
        loop.each_second.append(live.show)
    loop.sinks += start_notifiers(config.notify, config.otlp.resource, boot, history.wall)
    return loop, status, live, appliers(loop, intake, queues, brokers, profiling, receiver)


def _queues(poll_s: float, loaded: Loaded, older: Any) -> QueuePoller:
    from agent.probes import tcp
    from agent.queues.poller import QueuePoller
    from agent.queues.sockets import SocketQueues

    maps = loaded.families["tcp"].maps if "tcp" in loaded.families else {}
    owners = tcp.Listeners(loaded).name if tcp.LISTENERS in maps else None
    users = tcp.Connections(loaded).name if tcp.SOCKETS in maps else None
    return QueuePoller([SocketQueues(name_owners=owners, name_users=users, older=older)], poll_s)


def _time_daemons(settings: NtpSettings, history: Any) -> TimeDaemons:
    import numpy as np

    from agent.clock.daemons.daemon_source import TimeDaemons

    return TimeDaemons(settings, lambda wall_ns: int(history.to_boot(np.array([wall_ns])).ns[0]))


def main(to_help: Child, to_watch: Child) -> None:
    """The rest of ``python -m agent.start FD``. The two were forked for the helper and the clock watch."""
    from agent.posix.signals import Interrupted, begin

    try:
        begin()
        with os.fdopen(int(sys.argv[1])) as pipe:
            config = Config.from_json(json.load(pipe))
        log.use(config.service.log_format)
        status = run(config, to_help, to_watch)
    except Interrupted:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        log_message("tickscope: interrupted before it was ready", NOTICE)
        status = INTERRUPTED
    except AgentError as error:
        log_message(f"tickscope: {error}", ERROR)
        status = error.exit_code
    sys.exit(status)
