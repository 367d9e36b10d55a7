"""Commands of this checkout for unit tests. Each runs in a process of its own, forked after the imports: numpy and
duckdb take most of the processor time of a short command. Where a test is about the start of a command, its standard
streams or its end, it starts ``python -m agent`` instead.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Mapping
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path

_PROCESSES = get_context("forkserver")
_PROCESSES.set_forkserver_preload(
    ["duckdb", "numpy", "agent.cli.findings", "agent.cli.limiters", "agent.cli.query", "agent.correlate.correlator"]
)


def _command(argv: tuple[str, ...], env: Mapping[str, str], out: str, err: str) -> None:
    from agent.cli.main import main

    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    for path, fd in ((out, 1), (err, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOCTTY), fd)
    encoding = os.environ.get("PYTHONIOENCODING", "utf-8")
    sys.stdout = os.fdopen(1, "w", encoding=encoding, closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, encoding=encoding, errors="backslashreplace", closefd=False)
    sys.argv = ["tickscope", *argv]
    main()


def _started(argv: tuple[object, ...], env: Mapping[str, str], out: str, err: str) -> ForkServerProcess:
    command = tuple(map(str, argv))
    process = _PROCESSES.Process(target=_command, args=(command, {**os.environ, **env}, out, err))
    process.start()
    return process


def tickscope(*argv: object, **env: str) -> subprocess.CompletedProcess[bytes]:
    """A command with these variables of the environment beside the test's own."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        process = _started(argv, env, str(out), str(err))
        process.join()
        assert process.exitcode is not None
        return subprocess.CompletedProcess(argv, process.exitcode, out.read_bytes(), err.read_bytes())


def tickscope_text(*argv: object, **env: str) -> subprocess.CompletedProcess[str]:
    """The same; what it wrote as text."""
    done = tickscope(*argv, **env)
    return subprocess.CompletedProcess(argv, done.returncode, done.stdout.decode(), done.stderr.decode())


def on_terminal(*argv: object, columns: int = 100, errors: bool = False, **env: str) -> str:
    """What a command that ends well or finds nothing shows on a terminal of this width. errors: with what it writes to
    stderr.
    """
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (40, columns))
    terminal, out = os.ttyname(theirs), b""
    process = _started(argv, {"TERM": "xterm", **env}, terminal, terminal if errors else os.devnull)
    while process.is_alive() or select.select([ours], [], [], 0)[0]:
        if select.select([ours, process.sentinel], [], [], 1)[0] and select.select([ours], [], [], 0)[0]:
            out += os.read(ours, 65536)
    os.close(ours)
    os.close(theirs)
    assert process.exitcode in (0, 3), out
    return out.decode().replace("\r\n", "\n")
