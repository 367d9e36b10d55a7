"""Bringing the agent up: the privileged moment, then the processes, then the loop.

Order matters. The helper and the clock watch are forked while this process is still small. The loader runs and ends. Only then
does the agent become its own user without capabilities, and only after that does it read its first event.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent import background, control, directories, host, privilege
from agent.clock import timens
from agent.config import Config, jump_threshold_ns
from agent.errors import INTERRUPTED, PRIVILEGE, AgentError, say
from agent.kernel import helper as helper_room

if TYPE_CHECKING:
    from agent.batch import Sink, Source
    from agent.kernel.load import Loaded
    from agent.loop import Loop
    from agent.status import Status


def _require_readable() -> None:
    """Raises AgentError where the agent could not import its own code once it is its own user."""
    closed = privilege.closed_to_others()
    if closed:
        raise AgentError(
            f"{closed} is closed to other users", why="tickscope's code or its Python lies below it, and the agent gives up root",
            remedy="install with ./run.sh (into /opt), or chmod o+x it", exit_code=PRIVILEGE,
        )  # fmt: skip


def _families(config: Config) -> list[Any]:
    from agent.probes import discover

    off = set(config.without) | ({"syscalls"} if config.syscalls == "off" else set())
    return [probe for name, probe in sorted(discover().items()) if name not in off]


def _kernel_sources(config: Config, loaded: Loaded, helper: helper_room.Helper, extra: dict[str, Any]) -> list[Source]:
    """The kernel source and what the families add to it. A family whose set-up fails is unavailable; the others run."""
    from agent.kernel.source import KernelSource
    from agent.kernel.targets import Targets
    from agent.kernel.window import Window

    kernel = KernelSource(loaded)
    if loaded.shared:
        kernel.control["agent_pid"] = os.getpid()
    targets = Targets(helper, kernel)
    window = Window(helper, int(config.syscalls_window_ms * 1e6))
    sources: list[Any] = [kernel, targets, window]
    settings = {"syscalls": config.syscalls, "window": window, **extra}
    for family in loaded.families.values():
        if family.probe.setup is None or family.state == "unavailable":
            continue
        try:
            sources += family.probe.setup(family, kernel, helper, targets, settings)
        except Exception as error:  # noqa: BLE001 - one family's fault must not stop the others
            family.state, family.reason = "degraded", f"{type(error).__name__}: {error}"
    targets.start()
    if not any(source.name == "clock" for source in sources):
        from agent.clock.source import ClockSource

        sources.append(ClockSource(extra["watch"], extra["history"], extra["last"]))  # without programs: steps have no actor
    return sources


def run(config: Config) -> int:
    """The agent, until a signal or ``duration_s``. Returns the exit status. Raises AgentError before it is ready."""
    started = time.monotonic()
    privilege.require_root()
    timens.require_host()
    _require_readable()
    uid, gid = privilege.service_user()
    from agent.clock.process import start as start_watch

    store_fd = directories.prepare(config.store, 0o750, uid, gid)
    run_fd = directories.prepare(config.run_dir, 0o755, uid, gid)
    run_dir = Path(config.run_dir)
    control_socket = control.bind(run_dir / "control.sock", gid)
    helper = helper_room.start(uid, gid)
    watch = start_watch(run_dir / "notices.sock", uid, gid)
    hooks = []
    if config.notices:
        from agent.clock.hooks import start as start_hooks

        hooks = start_hooks(config.hooks(), run_fd, uid, gid)

    from agent.limiters.intake import IntakeSocket

    intake_socket = IntakeSocket.create(run_dir / "intake.sock")

    from agent.kernel import bpf
    from agent.kernel.load import load

    options = {"SYSCALLS_SLOW_NS": int(config.slow_syscall_ms * 1e6)}
    loaded = load(_families(config), options)
    if loaded.uprobe_multi:
        helper.restrict()
    clock = loaded.families.get("clock")
    watch.begin(clock.maps.get("clock_last", -1) if clock else -1)
    os.chown(run_dir / "intake.sock", uid, gid)
    privilege.set_name("tickscope")
    lost = loaded.shared.get("lost", -1)
    background.give_way()
    privilege.drop_unless_needed(uid, gid, privilege.CAP_BPF, lambda: lost < 0 or bpf.allowed(lost))

    loop, status = _assemble(config, store_fd, loaded, helper, watch, hooks, intake_socket, control_socket)
    stop_signals: list[int] = []

    def stop(number: int, _: object) -> None:
        stop_signals.append(number)
        loop.stopping = True

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    status.ready_s = time.monotonic() - started
    attached, degraded = status.counts()
    say(f"ready attached={attached} degraded={degraded} pid={os.getpid()}")
    from agent.loop import boot_ns

    loop.run(boot_ns() + int(config.duration_s * 1e9) if config.duration_s else 0)
    loop.finish()
    helper.close()
    watch.close()
    for name in ("control.sock", "intake.sock", "notices.sock"):
        _unlink(name, run_fd)
    status.farewell()
    return INTERRUPTED if signal.SIGINT in stop_signals else 0


def _unlink(name: str, run_fd: int) -> None:
    try:
        os.unlink(name, dir_fd=run_fd)
    except OSError as error:
        say(f"tickscope: cannot remove {name}: {error.strerror}")


def _assemble(config: Config, store_fd: int, loaded: Loaded, helper: helper_room.Helper, watch: Any, hooks: list[Any],
              intake_socket: Any, control_socket: Any) -> tuple[Loop, Status]:  # fmt: skip
    """Everything unprivileged: sources, store, correlator, sinks, the control socket and the live view."""
    from agent.clock.history import History
    from agent.clock.last import LastReading
    from agent.clock.notices import NoticeSource
    from agent.correlate.config import with_threshold
    from agent.correlate.correlator import Correlator
    from agent.limiters.intake import Intake
    from agent.limiters.waits import Watched
    from agent.loop import Loop
    from agent.status import Status
    from agent.store.hot import HotStore
    from agent.store.spawn import Limits
    from agent.unjudged import Unjudged

    boot = host.boot_id()
    limits = Limits(max_bytes=config.max_bytes, max_age_s=config.max_age_days * 86400)
    store = HotStore(store_fd, boot, host.name(), version=host.version(), limits=limits)
    history = History()
    sources = _kernel_sources(config, loaded, helper, {"watch": watch, "history": history, "last": LastReading(store_fd, boot)})
    sources += [NoticeSource(watch, hooks), Intake(intake_socket, config.intake_keys), *_queues(config, loaded), _time_daemons(config, history)]
    sinks, missing = _sinks(config, boot, history)
    correlator = Correlator(with_threshold(jump_threshold_ns(config.jump_threshold)))
    loop = Loop([*sources, Unjudged(correlator.losses)], store, correlator, [s for s in sinks if hasattr(s, "offer")])
    loop.closing += [s for s in sinks if not hasattr(s, "offer")]
    loop.failures.update(missing)
    if "syscalls" in loaded.families:
        loop.filter = Watched(loaded.families["syscalls"])
    status = Status(config, loop, loaded, helper, watch, history)
    loop.each_second.append(status.tell)
    server = control.Control(control_socket, {"status": status.document})
    loop.on_readable(server.sock, server.serve)
    if config.live:
        from agent.live import Live

        loop.each_second.append(Live(loop, status).show)
    return loop, status


def _queues(config: Config, loaded: Loaded) -> list[Any]:
    from agent.kernel.listeners import MAP, Listeners
    from agent.queues.poller import QueuePoller
    from agent.queues.sockets import SocketQueues

    known = "tcp" in loaded.families and MAP in loaded.families["tcp"].maps
    queues: list[Any] = [SocketQueues(name_owners=Listeners(loaded).name if known else None)]
    if config.redis:
        from agent.queues.redis_streams import sources

        queues += sources(config.redis)
    return [QueuePoller(queues, config.poll_s)]


def _time_daemons(config: Config, history: Any) -> Any:
    import numpy as np

    from agent.clock.daemons.config import NtpConfig
    from agent.clock.daemons.source import TimeDaemons

    return TimeDaemons(NtpConfig.parse(config.ntp), lambda wall_ns: int(history.to_boot(np.array([wall_ns])).ns[0]))


def _sinks(config: Config, boot: str, history: Any) -> tuple[list[Sink], dict[str, str]]:
    """OTLP and the Prometheus page, and why one is missing; neither is imported unless it is configured."""
    from exporters.config import resolve

    otlp = resolve(config.otlp, os.environ, {})
    if not otlp.enabled and not config.prometheus:
        return [], {}
    from exporters.aggregate import MetricStore
    from exporters.resource import describe

    metrics, resource, missing = MetricStore(), describe(boot, os.environ, host.version()), {}
    sinks: list[Any] = [metrics]
    if otlp.enabled:
        from exporters.otlp import OtlpExporter

        sinks.append(OtlpExporter(otlp, resource, lambda t_ns: history.to_wall(t_ns).ns, metrics))
    if config.prometheus:
        from exporters.prometheus import PrometheusEndpoint

        address, _, port = config.prometheus.rpartition(":")
        try:
            sinks.append(PrometheusEndpoint((address.strip("[]"), int(port)), metrics, resource))
        except AgentError as error:
            missing["prometheus"] = f"{error.what}: {error.why}"
            say(f"tickscope: {error}")
    return sinks, missing


def main() -> None:
    """``python -m agent.main FD``: the configuration as JSON on a descriptor. The CLI becomes this by exec."""
    with os.fdopen(int(sys.argv[1])) as pipe:
        config = Config.from_json(json.load(pipe))
    try:
        sys.exit(run(config))
    except KeyboardInterrupt:
        print("tickscope: interrupted before it was ready", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except AgentError as error:
        print(f"tickscope: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
