"""SIGHUP: the settings are read again. What can change while the agent runs does at once; what cannot is named.

A process of its own reads them (``python -m agent.service.reload``): a file may hang, and YAML is not in the agent's
memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from agent.config import Config, resolve
from agent.errors import AgentError
from agent.log import NOTICE, WARNING, log_message
from agent.posix.supervisor import Supervised, spawn

if TYPE_CHECKING:
    from agent.investigate.investigator import Investigator
    from agent.limiters.intake import Intake
    from agent.queues.poller import QueuePoller
    from agent.queues.poller_process import Brokers
    from agent.receiver.receiver_process import OtlpReceiver
    from agent.service.loop import Loop

_LIMIT_BYTES = 1 << 20


class Reload:
    """appliers: by setting, what makes the running agent use the new configuration; a setting without one needs a
    restart.
    """

    def __init__(self, config: Config, loop: Loop, appliers: Mapping[str, Callable[[Config], None]]) -> None:
        self.config = config
        self._loop, self._appliers = loop, appliers
        self._child = Supervised("settings", "reads the settings again")
        self._text = b""

    def start(self) -> None:
        """Has the settings read; one that was still at it is ended, its file hangs."""
        self._end()
        asked = os.memfd_create("tickscope-config", os.MFD_CLOEXEC)  # not the command line, which everybody may read
        os.write(asked, json.dumps(self.config.to_json()).encode())
        os.lseek(asked, 0, os.SEEK_SET)
        ours, theirs = socket.socketpair()
        try:
            process = spawn("agent.service.reload", environment=os.environ, stdin=asked, stdout=theirs.fileno())
        except OSError as error:
            log_message(
                f"tickscope: cannot read the settings again: {error.strerror}; nothing was changed",
                event="reload_failed",
            )
            ours.close()
            return
        finally:
            os.close(asked)
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
        changed, waiting = self._apply(Config.from_json(answer["config"]))
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
        if name == "brokers":  # a server's URL may hold a password
            counts = [f"{len(servers)} of {kind}" for kind, servers in self.config.queues.brokers.items()]
            return f"brokers are now {', '.join(counts) or 'none'}"
        return f"{name} is now {self.config.values()[name]!r}"

    def _apply(self, new: Config) -> tuple[list[str], list[str]]:
        """(settings that are in force now, settings that need a restart)."""
        before, after = self.config.values(), new.values()
        differing = [name for name, value in after.items() if value != before[name]]
        changed = [name for name in differing if name in self._appliers]
        self.config = self.config.with_values({name: after[name] for name in changed})
        for name in changed:
            self._appliers[name](self.config)
        return changed, [name for name in differing if name not in self._appliers]


def appliers(
    loop: Loop,
    intake: Intake,
    queues: QueuePoller,
    brokers: Brokers,
    investigator_: Investigator | None,
    receiver: OtlpReceiver | None = None,
) -> dict[str, Callable[[Config], None]]:
    """What each setting that can change does."""
    from agent import log
    from agent.correlate.thresholds import with_threshold
    from agent.service import redis_reported

    def limit(config: Config) -> None:
        loop.store.limit(max_bytes=config.store.max_bytes, max_age_s=config.store.max_age_days * 86400)

    def pace(config: Config) -> None:
        queues.rounds.interval_s = config.queues.poll_s
        reports(config)

    def reports(config: Config) -> None:
        if brokers in loop.sources:  # else it is left out: nobody would read what a process of its says
            brokers.use(config.queues.brokers, config.queues.poll_s)

    def profile(config: Config) -> None:
        assert investigator_ is not None
        investigator_.on = config.probes.investigate != "off"

    def receive(config: Config) -> None:
        if receiver in loop.sources:
            receiver.use(config.otlp_receiver, config.limiters)

    def keys(config: Config) -> None:
        intake.store_keys(config.limiters.intake_keys)
        receive(config)

    return {
        **({"otlp_receiver": receive} if receiver is not None else {}),
        **redis_reported.appliers(loop.sources),
        **(
            {"investigate": profile} if investigator_ is not None else {}
        ),  # what was not loaded at the start needs another
        "log_format": lambda config: log.use(config.service.log_format),
        "max_bytes": limit,
        "max_age_days": limit,
        "intake_keys": keys,
        "brokers": reports,
        "poll_s": pace,
        "jump_threshold": lambda config: loop.correlator.judge_jumps(with_threshold(config.clock.jump_threshold_ns)),
    }


def main() -> None:
    """The child: the configuration in force on stdin, the one that a start now would have on stdout."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    old = Config.from_json(json.load(sys.stdin))
    try:
        flags = dict(old.source.get("flags", {}))
        file = str(old.source.get("file", ""))
        new = resolve(
            {k: tuple(v) if isinstance(v, list) else v for k, v in flags.items()},
            os.environ,
            file if old.source.get("chosen") else None,
        )
        print(
            json.dumps(
                {"config": new.to_json(), "file": file if Path(file).exists() else f"the settings (there is no {file})"}
            )
        )
    except AgentError as error:
        print(json.dumps({"error": str(error)}))


if __name__ == "__main__":
    main()
