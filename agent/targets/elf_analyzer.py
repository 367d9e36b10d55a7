"""The ELF analyzer: the process that reads files that other users made, and that may be hostile.

It has no capability and no file of its own, cannot open any (seccomp), and receives descriptors by SCM_RIGHTS. A
question takes at most ANALYZER_CPU_S of CPU time and ANALYZER_EXTRA_BYTES of memory. Beyond that the kernel ends the
process (RLIMIT_CPU, RLIMIT_AS), and the next question starts a new one. The agent's side is
agent/targets/analyzer_pool.py.

Protocol on a SOCK_SEQPACKET pair, JSON: question [id, analysis, arguments] with descriptors, answer [id, facts or null,
reason, seconds]. The first message is [0, null, "", 0] when the process is ready.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import sys
import time

from agent.arch import host
from agent.binaries import analyses
from agent.binaries.contract import Analysis
from agent.binaries.elf import ElfError
from agent.kernel.limits import ANALYZER_CPU_S, ANALYZER_EXTRA_BYTES, ANALYZER_MAX_FDS, ANALYZER_MAX_MESSAGE
from agent.posix import privilege

_CALLS = host.allowed(
    """read close fstat lseek mmap mprotect munmap brk rt_sigaction rt_sigprocmask rt_sigreturn pread64 mremap
    madvise sendto sendmsg recvmsg exit getrusage futex clock_gettime exit_group newfstatat prlimit64 getrandom"""
)


def _used_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _confine() -> None:
    """Call after all imports: no file can be opened afterwards."""
    privilege.set_name("tickscope-exam")
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as first_to_go:
        first_to_go.write("1000")
    with open("/proc/self/statm") as statm:
        size = int(statm.read().split()[0]) * resource.getpagesize()
    for what, limit in (
        (resource.RLIMIT_AS, size + ANALYZER_EXTRA_BYTES),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_RTPRIO, 0),
    ):
        resource.setrlimit(what, (limit, limit))
    privilege.give_up_all(os.getppid())
    privilege.allow_only(_CALLS)


def _answer(sock: socket.socket, data: bytes, fds: list[int]) -> None:
    number, analysis, arguments = json.loads(data)
    resource.setrlimit(
        resource.RLIMIT_CPU, (int(_used_cpu_s()) + ANALYZER_CPU_S + 1, resource.getrlimit(resource.RLIMIT_CPU)[1])
    )
    begun = time.monotonic()
    facts, why = None, ""
    try:
        found = analyses.KINDS[analysis](fds, **arguments)
        facts = (
            [one.plain() if isinstance(one, Analysis) else one for one in found] if isinstance(found, list) else found
        )
    except (ElfError, OSError) as error:
        why = str(error)
    except MemoryError:
        why = f"it takes more than {ANALYZER_EXTRA_BYTES >> 20} MB of memory to examine"
    except Exception as error:  # noqa: BLE001 - reports a bug of the analyzer instead of ending the process
        why = f"{type(error).__name__}: {error}"[:200]
    raw = json.dumps([number, facts, why, time.monotonic() - begun]).encode()
    if len(raw) > ANALYZER_MAX_MESSAGE:
        raw = json.dumps(
            [number, None, "its facts are larger than an answer may be", time.monotonic() - begun]
        ).encode()
    sock.send(raw)


def main() -> None:
    """``python -m agent.targets.elf_analyzer FD``: answers until the other end of the socket closes. The pool ends idle
    analyzers.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sock = socket.socket(fileno=int(sys.argv[1]))
    sock.setblocking(True)
    analyses.discover()
    _confine()
    sock.send(b'[0, null, "", 0]')
    while True:
        data, fds, _, _ = socket.recv_fds(sock, ANALYZER_MAX_MESSAGE, ANALYZER_MAX_FDS)
        if not data:
            os._exit(0)
        _answer(sock, data, fds)
        for fd in fds:
            os.close(fd)


if __name__ == "__main__":
    main()
