"""SIGHUP: the settings are read again. What can change while the agent runs does at once; what cannot is named.

A process of its own reads them (``python -m agent.service.reload``): a file may hang, and YAML is not in the agent's
memory. The helper opens the file, which only root may be able to read. What the helper does not open, such as a
symbolic link, is read as user tickscope.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.config import Applier, Config, InForce, resolve
from agent.errors import AgentError
from agent.log import NOTICE, WARNING, log_message
from agent.posix.supervisor import Supervised, spawn

if TYPE_CHECKING:
    from agent.clock.settings import ClockSettings
    from agent.investigate.investigator import Investigator
    from agent.kernel.settings import ProbeSettings
    from agent.kernel.steps import Wait
    from agent.limiters.intake import Intake
    from agent.limiters.settings import LimiterSettings
    from agent.queues.poller import QueuePoller
    from agent.queues.poller_process import BrokerPoller
    from agent.queues.settings import QueueSettings
    from agent.receiver.receiver_process import OtlpReceiver
    from agent.receiver.settings import ReceiverSettings
    from agent.service.loop import Loop
    from agent.store.settings import StoreSettings

_LIMIT_BYTES = 1 << 20


class Reload:
    """source: the file and the flags of the start (``Config.source``). opening: waits for a descriptor of the file."""

    def __init__(self, source: Mapping[str, Any], in_force: InForce, loop: Loop, opening: Wait) -> None:
        self._source, self._in_force, self._loop, self._opening = source, in_force, loop, opening
        self._child = Supervised("settings", "reads the settings again")
        self._text = b""

    def start(self) -> None:
        """Has the settings read."""
        self._opening(self._read)

    def _read(self, opened: int | None, _: Exception | None) -> None:
        """opened: the file; None: the process is to open it. One that was still at it is ended, its file hangs."""
        self._end()
        asked = os.memfd_create("tickscope-config", os.MFD_CLOEXEC)  # not the command line, which everybody may read
        os.write(asked, json.dumps({**self._source, "opened": opened}).encode())
        os.lseek(asked, 0, os.SEEK_SET)
        ours, theirs = socket.socketpair()
        fds = () if opened is None else (opened,)
        try:
            process = spawn(
                "agent.service.reload", fds=fds, environment=os.environ, stdin=asked, stdout=theirs.fileno()
            )
        except OSError as error:
            log_message(
                f"tickscope: cannot read the settings again: {error.strerror}; nothing was changed",
                event="reload_failed",
            )
            ours.close()
            return
        finally:
            for fd in (asked, *fds):
                os.close(fd)
            theirs.close()
        ours.setblocking(False)
        self._child.adopt(process, ours)
        self._text = b""
        self._loop.on_readable(ours, self._take)

    def _take(self) -> None:
        assert self._child.socket is not None
        with contextlib.suppress(BlockingIOError):
            piece = self._child.socket.recv(1 << 16)
            self._text += piece
            if piece and len(self._text) < _LIMIT_BYTES:
                return
            text = self._text
            self._end()
            self._finish(text)

    def _end(self) -> None:
        """Kills it. It is not waited for: the file system that its file is on may keep it from dying."""
        if self._child.socket is not None:
            self._loop.selector.unregister(self._child.socket)
        self._child.end()
        self._child.reap()

    def _finish(self, text: bytes) -> None:
        try:
            answer = json.loads(text)
        except ValueError:
            answer = {"error": "the process that reads them ended early"}
        if "error" in answer:
            log_message(
                f"tickscope: cannot use the settings: {answer['error']}\n  nothing was changed", event="reload_failed"
            )
            return
        changed, waiting = self._in_force.change(Config.from_json(answer["config"]))
        done = "; ".join(map(self._now, changed)) or "nothing changed"
        rest = f"; needs a restart: {', '.join(waiting)}" if waiting else ""
        log_message(
            f"tickscope: read {answer['file']} again: {done}{rest}",
            WARNING if waiting else NOTICE,
            event="reloaded",
            changed=changed,
            needs_restart=waiting,
        )

    def _now(self, name: str) -> str:
        value = self._in_force.values[name]
        if name == "brokers":  # a server's URL may hold a password
            counts = [f"{len(servers)} of {kind}" for kind, servers in value.items()]
            return f"brokers are now {', '.join(counts) or 'none'}"
        return f"{name} is now {value!r}"


def appliers(
    loop: Loop,
    intake: Intake,
    queues: QueuePoller,
    brokers: Sequence[BrokerPoller],
    investigator_: Investigator | None,
    receiver: OtlpReceiver | None = None,
) -> dict[str, Applier]:
    """What each setting that can change does."""
    from agent import log
    from agent.correlate.thresholds import with_threshold
    from agent.service import redis_reported

    def limit(settings: StoreSettings) -> None:
        loop.store.limit(max_bytes=settings.max_bytes, max_age_s=settings.max_age_days * 86400)

    def pace(settings: QueueSettings) -> None:
        queues.rounds.interval_s = settings.poll_s
        reports(settings)

    def reports(settings: QueueSettings) -> None:
        for one in brokers:
            if one in loop.sources:  # else it is left out: nobody would read what a process of its says
                one.use(settings.brokers.get(one.kind, ()), settings.poll_s)

    def profile(settings: ProbeSettings) -> None:
        assert investigator_ is not None
        investigator_.on = settings.investigate != "off"

    def receive(settings: ReceiverSettings, limiters: LimiterSettings) -> None:
        if receiver in loop.sources:
            receiver.use(settings, limiters)

    def keys(settings: ReceiverSettings, limiters: LimiterSettings) -> None:
        intake.store_keys(limiters.intake_keys)
        receive(settings, limiters)

    def judge(settings: ClockSettings) -> None:
        loop.correlator.judge_jumps(with_threshold(settings.jump_threshold_ns))

    receiving = "otlp_receiver", "limiters"
    return {
        **({"otlp_receiver": Applier(receive, receiving)} if receiver is not None else {}),
        **redis_reported.appliers(loop.sources),
        # What was not loaded at the start needs another.
        **({"investigate": Applier(profile, ("probes",))} if investigator_ is not None else {}),
        "log_format": Applier(lambda settings: log.use(settings.log_format), ("service",)),
        "max_bytes": Applier(limit, ("store",)),
        "max_age_days": Applier(limit, ("store",)),
        "intake_keys": Applier(keys, receiving),
        "brokers": Applier(reports, ("queues",)),
        "poll_s": Applier(pace, ("queues",)),
        "jump_threshold": Applier(judge, ("clock",)),
    }


def main() -> None:
    """The child: ``Config.source`` on stdin, the configuration that a start now would have on stdout."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    source = json.load(sys.stdin)
    try:
        flags = dict(source.get("flags", {}))
        file, opened = str(source.get("file", "")), source.get("opened")
        new = resolve(
            {k: tuple(v) if isinstance(v, list) else v for k, v in flags.items()},
            os.environ,
            file if source.get("chosen") else None,
            opened,
        )
        there = opened is not None or Path(file).exists()
        named = file if there else f"the settings (there is no {file})"
        print(json.dumps({"config": new.to_json(), "file": named}))
    except AgentError as error:
        print(json.dumps({"error": str(error)}))


if __name__ == "__main__":
    main()
