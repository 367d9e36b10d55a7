"""Has files analyzed in separate processes (agent/targets/elf_analyzer.py), which run only while there are files to
analyze.

The agent does not read files that others made. It passes the descriptor to an analyzer and gets the facts, or the
reason why there are none. An analyzer that exceeds its time or dies is ended. Its question is answered with the reason,
and the next question starts a new process.
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

#: Number of the first message of an analyzer: it is ready for questions.
READY = 0
#: A second analyzer is started when the first has worked longer than this on its question, or has been starting for
#: longer.
_SOON_S, _STARTS_S = 0.1, 1.0


class AnalysisFailed(Exception):
    """Why there are no facts. ``overrun``: the analysis exceeded a limit or ended its process; ``passing``: a
    repetition may succeed, since the cause may be the machine, not the file.
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
    """One process at a time, and both ends of its socket. A new process takes over the socket, so pollers of our end
    need not change.
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
        """user: uid and gid of the new process; None keeps those of the agent."""
        environment = {"OPENBLAS_NUM_THREADS": "1", "PATH": os.environ.get("PATH", ""), "LC_ALL": "C.UTF-8"}
        while True:  # what the previous process left unread
            try:
                _, fds = helper.receive(
                    self.theirs, ANALYZER_MAX_MESSAGE, socket.MSG_DONTWAIT
                )  # an analyzer sets the socket to blocking
            except OSError:
                break
            for fd in fds:
                os.close(fd)
        fd, self.ready, self.since_s = self.theirs.fileno(), False, time.monotonic()
        self.child.adopt(spawn("agent.targets.elf_analyzer", fd, fds=[fd], environment=environment, user=user))

    def answer(self) -> list[Any] | None:
        """The answer to the current question; None where there is none yet. Answers to earlier questions are dropped.
        The time limit of the question starts when the process is ready.
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
        """Why there will be no answer; None while there may be one. Ends a process that exceeds its time."""
        code = self.child.process.poll() if self.child.process is not None else 0
        if code is not None:
            self.child.end()
            if code == -signal.SIGXCPU:
                return AnalysisFailed(f"its analysis took more than {ANALYZER_CPU_S} s of CPU time", overrun=True)
            return AnalysisFailed(f"its ELF analyzer ended with {how(code)}", overrun=True, passing=True)
        if time.monotonic() - self.since_s <= (ANALYZER_WALL_S if self.ready else ANALYZER_START_S):
            return None
        self.end()
        error_text = (
            f"its analysis took more than {ANALYZER_WALL_S:.0f} s"
            if self.ready
            else f"its ELF analyzer did not start within {ANALYZER_START_S:.0f} s"
        )
        return AnalysisFailed(error_text, overrun=True, passing=True)

    def end(self) -> None:
        """An idle process is asked to end; a busy one is killed."""
        self.child.end(kill=self.question is not None)
        self.child.reap()


def _soon_free(analyzer: _Analyzer) -> bool:
    """Whether waiting for this analyzer is expected to be quicker than starting another: most answers take a
    millisecond.
    """
    within_s = _SOON_S if analyzer.ready else _STARTS_S
    return analyzer.child.process is not None and (
        analyzer.question is None or time.monotonic() - analyzer.since_s < within_s
    )


class AnalyzerPool:
    """``overruns`` counts questions that exceeded a limit or ended their process; ``took_s`` is the duration of the
    last one, without the start of the process.
    """

    def __init__(self, processes: int = ANALYZERS) -> None:
        self._processes = [_Analyzer() for _ in range(processes)]
        self._queue: deque[_Question] = deque()
        self.overruns: Counter[str] = Counter()
        self.took_s = 0.0

    def begin(self, user: tuple[int, int]) -> None:
        """Starts one analyzer as this user (uid, gid) in advance. Raises OSError."""
        self._processes[0].start(user)

    def analyze(self, analysis: str, fds: list[int], **arguments: Any) -> Wait:
        """A wait for the facts that ``agent.binaries.analyses.KINDS[analysis]`` finds in these files. It is resumed
        with the facts or with AnalysisFailed. The caller keeps its descriptors.
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
        """Pids of the running analyzers."""
        return [one["pid"] for e in self._processes for one in e.child.processes()]

    def fds(self) -> list[int]:
        return [e.ours.fileno() for e in self._processes]

    def pump(self) -> None:
        """Takes answers, ends analyzers that exceed their time, and starts queued questions."""
        for analyzer in self._processes:
            self._check(analyzer)
        self._next()

    def rest(self) -> None:
        """Ends the idle analyzers."""
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
                        OSError(error.errno, f"cannot start its ELF analyzer: {error.strerror}"),
                    )

    def _check(self, analyzer: _Analyzer) -> None:
        answer = analyzer.answer()
        if analyzer.question is None:
            if analyzer.child.process is None or time.monotonic() - analyzer.since_s > ANALYZER_IDLE_S:
                analyzer.end()
        elif answer is not None:
            _, facts, why, self.took_s = answer
            self._report(analyzer, facts, AnalysisFailed(why) if why else None)
        elif (failure := analyzer.failed()) is not None:
            self.overruns[analyzer.question.analysis] += 1
            self.took_s = time.monotonic() - analyzer.since_s if analyzer.ready else 0.0
            self._report(analyzer, None, failure)

    @staticmethod
    def _report(analyzer: _Analyzer, facts: Any, error: Exception | None) -> None:
        question, analyzer.question, analyzer.since_s = analyzer.question, None, time.monotonic()
        if question is not None:
            question.done(facts, error)
