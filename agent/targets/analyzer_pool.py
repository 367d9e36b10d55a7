"""Has files examined by a process of its own (agent/targets/elf_analyzer.py), which is started when there is something
to examine and ended when there is not.

The agent reads nothing of a file that others made: it hands the descriptor over and gets plain facts, or why there are
none. an ELF analyzer that takes too long or dies is ended, its question answered with the reason, and the next question
starts another.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections import Counter, deque
from typing import Any

from agent.kernel import helper
from agent.kernel.limits import (
    ANALYZER_CPU_S,
    ANALYZER_IDLE_S,
    ANALYZER_MAX_MESSAGE,
    ANALYZER_START_S,
    ANALYZER_WALL_S,
    ANALYZERS,
)
from agent.kernel.steps import Done, Wait
from agent.posix.supervisor import Supervised, how, spawn

#: Number of the first answer of a process, to no question: it is ready to be asked.
READY = 0
#: A question waits for an ELF analyzer that has worked on another one, or has been starting, for less; then a second
#: one is started.
_SOON_S, _STARTS_S = 0.1, 1.0


class AnalysisFailed(Exception):
    """Why there are no facts. ``overrun``: examining it took more than it may; ``passing``: which may be the machine's
    fault rather than the file's.
    """

    def __init__(self, why: str, overrun: bool = False, passing: bool = False) -> None:
        super().__init__(why)
        self.overrun, self.passing = overrun, passing


class _Question:
    def __init__(self, analysis: str, arguments: dict[str, Any], fds: list[int], done: Done) -> None:
        self.analysis, self.arguments, self.done = analysis, arguments, done
        self.fds: list[int] = []
        try:
            for fd in fds:
                self.fds.append(os.dup(fd))
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self.fds.clear()


class _Analyzer:
    """One process at a time, and both ends of its socket: so it can be replaced, and nobody who polls our end
    notices.
    """

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.ours.setblocking(False)
        self.child = Supervised("analyzer", "examines files")
        self.question: _Question | None = None
        self.number = 0
        self.since_s = 0.0
        self.ready = False

    def ask(self, question: _Question) -> None:
        self.number += 1
        self.question, self.since_s = question, time.monotonic()
        if self.child.process is None:
            self.start()
        message = json.dumps([self.number, question.analysis, question.arguments]).encode()
        socket.send_fds(self.ours, [message], question.fds)
        question.close()

    def start(self, user: tuple[int, int] | None = None) -> None:
        """user: uid and gid that its process runs as, for an agent that is still root."""
        environment = {"OPENBLAS_NUM_THREADS": "1", "PATH": os.environ.get("PATH", ""), "LC_ALL": "C.UTF-8"}
        while True:  # what the one before left unread
            try:
                _, fds = helper.receive(
                    self.theirs, ANALYZER_MAX_MESSAGE, socket.MSG_DONTWAIT
                )  # an ELF analyzer makes the socket a blocking one
            except OSError:
                break
            for fd in fds:
                os.close(fd)
        fd, self.ready, self.since_s = self.theirs.fileno(), False, time.monotonic()
        self.child.adopt(spawn("agent.targets.elf_analyzer", fd, fds=[fd], environment=environment, user=user))

    def answer(self) -> list[Any] | None:
        """The answer to the question; None where there is none yet. Answers to those before it are dropped; its time
        begins when the process is ready.
        """
        while True:
            try:
                data = self.ours.recv(ANALYZER_MAX_MESSAGE)
            except OSError:
                return None
            answer: list[Any] = json.loads(data)
            if answer[0] == READY:
                self.since_s = self.since_s if self.ready else time.monotonic()
                self.ready = True
            elif answer[0] == self.number:
                return answer

    def failed(self) -> AnalysisFailed | None:
        """Why there will be no answer; None while there may be one. Who takes too long is ended."""
        code = self.child.process.poll() if self.child.process is not None else 0
        if code is not None:
            self.child.end()
            if code == -signal.SIGXCPU:
                return AnalysisFailed(f"examining it took more than {ANALYZER_CPU_S} s of processor time", overrun=True)
            return AnalysisFailed(f"the process that examined it ended with {how(code)}", overrun=True, passing=True)
        if time.monotonic() - self.since_s <= (ANALYZER_WALL_S if self.ready else ANALYZER_START_S):
            return None
        self.end()
        error_text = (
            f"examining it took more than {ANALYZER_WALL_S:.0f} s"
            if self.ready
            else f"the process to examine it did not start within {ANALYZER_START_S:.0f} s"
        )
        return AnalysisFailed(error_text, overrun=True, passing=True)

    def end(self) -> None:
        """One that has nothing to do is asked to end; else it is killed."""
        self.child.end(kill=self.question is not None)
        self.child.reap()


def _soon_free(one: _Analyzer) -> bool:
    """Whether to wait for it takes less than to start another process: most answers take a millisecond."""
    within_s = _SOON_S if one.ready else _STARTS_S
    return one.child.process is not None and (one.question is None or time.monotonic() - one.since_s < within_s)


class AnalyzerPool:
    """``overruns`` counts questions that took too long or ended their process; ``took_s``: how long the last one took,
    without the start of the process.
    """

    def __init__(self, processes: int = ANALYZERS) -> None:
        self._processes = [_Analyzer() for _ in range(processes)]
        self._queue: deque[_Question] = deque()
        self.overruns: Counter[str] = Counter()
        self.took_s = 0.0

    def begin(self, user: tuple[int, int]) -> None:
        """Starts one as this user (uid, gid), since there will be something to examine. Raises OSError."""
        self._processes[0].start(user)

    def analyze(self, analysis: str, fds: list[int], **arguments: Any) -> Wait:
        """A wait for the facts that ``agent.binaries.analyses.KINDS[analysis]`` finds in these files; resumed with them
        or Unexamined. The descriptors stay the caller's.
        """

        def wait(done: Done) -> None:
            try:
                self._queue.append(_Question(analysis, arguments, fds, done))
                self._next()
            except OSError as error:
                done(None, error)

        return wait

    @property
    def pids(self) -> list[int]:
        """Of the processes that run now."""
        return [one["pid"] for e in self._processes for one in e.child.processes()]

    def fds(self) -> list[int]:
        return [e.ours.fileno() for e in self._processes]

    def pump(self) -> None:
        """Takes answers, ends who takes too long, and starts what waits."""
        for analyzer in self._processes:
            self._check(analyzer)
        self._next()

    def rest(self) -> None:
        """Ends those that have nothing to do now."""
        for analyzer in self._processes:
            if analyzer.question is None:
                analyzer.end()

    def close(self) -> None:
        for analyzer in self._processes:
            analyzer.end()
            analyzer.ours.close()
            analyzer.theirs.close()
        for question in self._queue:
            question.close()
        self._queue.clear()

    def _next(self) -> None:
        for analyzer in self._processes:
            runs = analyzer.child.process is not None
            if self._queue and analyzer.question is None and (runs or not any(map(_soon_free, self._processes))):
                question = self._queue.popleft()
                try:
                    analyzer.ask(question)
                except OSError as error:
                    question.close()
                    self._report(
                        analyzer,
                        None,
                        OSError(error.errno, f"cannot start the process that examines it: {error.strerror}"),
                    )

    def _check(self, one: _Analyzer) -> None:
        answer = one.answer()
        if one.question is None:
            if one.child.process is None or time.monotonic() - one.since_s > ANALYZER_IDLE_S:
                one.end()
        elif answer is not None:
            _, facts, why, self.took_s = answer
            self._report(one, facts, AnalysisFailed(why) if why else None)
        elif (failure := one.failed()) is not None:
            self.overruns[one.question.analysis] += 1
            self.took_s = time.monotonic() - one.since_s if one.ready else 0.0
            self._report(one, None, failure)

    @staticmethod
    def _report(analyzer: _Analyzer, facts: Any, error: Exception | None) -> None:
        question, analyzer.question, analyzer.since_s = analyzer.question, None, time.monotonic()
        if question is not None:
            question.done(facts, error)
