"""A process of ``spawned`` as the agent keeps it: looked after, told of, and started again where it ended or gives no
sign of life.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

from agent.batch import Batch, make
from agent.log import NOTICE, WARNING, say
from agent.posix.restarts import Restarts
from agent.posix.spawned import how
from agent.tables import TABLES

#: Without a sign of life (there are four a second) it counts as silent, and is ended after the second.
SILENT_S, MOST_SILENT_S = 3.0, 30.0
_LOOK_S = 0.2
#: The agent itself could not look for so long: nothing can be said of the process.
_HELD_UP_S = 1.0
#: Not gone yet: with so many none is started.
_MOST_ENDING = 4
#: For those that are to end by themselves.
_PATIENCE_S = 2.0
_REMEDY = "see what it said on stderr; restart tickscope"


class KeptProcess:
    """name: of the part that it belongs to; does: what the process does, in words. start: starts it, None where there
    is nothing for it to do; raises OSError.
    over: called once for each that has ended or was killed.

    socket: the agent's end, None while there is no process. trouble: in words, empty while all is well. drained: what
    it said until its end was read.
    """

    def __init__(
        self,
        name: str,
        does: str,
        start: Callable[[], tuple[subprocess.Popen[bytes], socket.socket] | None],
        over: Callable[[], None],
    ) -> None:
        self.restarts = Restarts()
        self.socket: socket.socket | None = None
        self.trouble = self._told = ""
        self.drained, self._answers = True, False
        self._name, self._does, self._started, self._ended = name, f"the process that {does}", start, over
        self._child: subprocess.Popen[bytes] | None = None
        self._ending: list[tuple[subprocess.Popen[bytes], float]] = []  # with when each is killed
        self._looked_s = self._heard_s = time.monotonic()
        self._held_up_s = 0.0

    def renew(self) -> None:
        """Ends the process, and forgets what went wrong: there are other settings."""
        self.end(kill=False)
        self.restarts, self.trouble, self._looked_s = Restarts(), "", time.monotonic()

    def start(self) -> None:
        now_s = time.monotonic()
        self.end()
        self.drained = self._answers = False
        try:
            started = self._started()
        except OSError as error:
            self.fail(f"cannot be started: {error.strerror or error}")
            return
        if started is None:
            return
        self._child, self.socket = started
        self._heard_s = now_s
        if self.restarts.why:
            self.restarts.started(now_s)

    def heard(self) -> None:
        """It gave a sign of life."""
        self._heard_s, self._answers = time.monotonic(), True

    def fail(self, why: str) -> None:
        """It is of no use any more: another one is started, in a while."""
        self.end()
        self.restarts.ended(time.monotonic(), why)

    def turn(self) -> bool:
        """Whether it is time to ``look``."""
        now_s = time.monotonic()
        if now_s - self._looked_s < _LOOK_S:
            return False
        self._held_up_s, self._looked_s = now_s - self._looked_s, now_s
        self._ending = [one for one in self._ending if one[0].poll() is None]
        for child, until_s in self._ending:
            if now_s > until_s:
                child.kill()
        return True

    def look(self) -> None:
        """How it is; starts it where it is not there."""
        now_s = self._looked_s
        if self._child is None and self.restarts.due(now_s) and len(self._ending) < _MOST_ENDING:
            self.start()
        if self._held_up_s > _HELD_UP_S:
            self._heard_s = min(now_s, self._heard_s + self._held_up_s)
        quiet_s = now_s - self._heard_s
        if self._child is not None:
            code = self._child.poll()
            if code is not None and (self.drained or quiet_s > SILENT_S):  # what it still said is taken first
                self.fail(how(code))
            elif quiet_s > MOST_SILENT_S:
                self.fail("it gave no sign of life")
        if self.restarts.given_up:
            self.trouble = f"{self._does} is gone, the last of several in a row: {self.restarts.why}"
        elif self._child is None and self.restarts.why:
            self.trouble = f"{self._does} ended ({self.restarts.why}), and is started again"
        elif self._child is not None and quiet_s > SILENT_S:
            self.trouble = f"{self._does} gives no sign of life"
        elif self._answers:
            self.trouble = ""

    def tell(self, now_ns: int, well: str, state: str) -> Iterator[Batch]:
        """What has changed, on stderr and as ``probe_status``. well, state: what is said of it without trouble."""
        if self.trouble == self._told:
            return
        self._told = self.trouble
        remedy = _REMEDY if self.restarts.given_up else ""
        words = "; ".join(filter(None, (self.trouble or well, remedy)))
        say(f"tickscope: {self._name}: {words}", WARNING if self.trouble else NOTICE)
        code = TABLES["probe_status"].code("state", "degraded" if self.trouble else state)
        yield make(
            "probe_status",
            1,
            t_ns=now_ns,
            probe=self._name.encode(),
            state=code,
            reason=self.trouble.encode(),
            remedy=remedy.encode(),
        )

    def failures(self) -> dict[str, str]:
        return {self._name: self.trouble} if self.trouble else {}

    def processes(self) -> list[dict[str, Any]]:
        return [{"pid": self._child.pid, "role": self._name}] if self._child is not None else []

    def end(self, kill: bool = True) -> None:
        """It is not waited for. One with which nothing is wrong ends by itself, since its socket is closed: whoever
        watches this host takes one that is killed for a fault.
        """
        if self._child is None:
            return
        self._child.send_signal(signal.SIGKILL if kill else signal.SIGCONT)
        self._ending.append((self._child, time.monotonic() + _PATIENCE_S))
        assert self.socket is not None
        self.socket.close()
        self._child = self.socket = None
        self._ended()

    def close(self) -> None:
        """Waits for the process, and not for long: a file system that does not answer may keep it from dying."""
        self.end(kill=False)
        for child, until_s in self._ending:
            try:
                child.wait(max(0.0, until_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
