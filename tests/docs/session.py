"""Takes what the documents show from a real run: ``sudo python -m tests.docs.session`` (a minute, with `tickscope`
installed beside this Python).

It runs `tickscope demo --step-clock` on a terminal of its own, with a store and sockets of its own. Then it runs the
commands of each block of README.md and docs/ that is marked ``ran by python -m tests.docs.session`` and puts what they
said below them.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tests.docs import pages

COLUMNS, LINES = 100, 38
#: How many lines of an output are kept is said in the mark.
BLOCK = re.compile(
    r"(<!-- ran by python -m tests\.docs\.session(?:, first (\d+) lines)? -->\n```console\n)(.*?)(```\n)", re.DOTALL
)
_PATIENCE_S = 120


class Terminal:
    """A program on a pty; ``text`` is what it has written so far."""

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        self.text, (master, slave) = b"", pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        self.process = subprocess.Popen(
            command, env=env, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
        os.close(slave)
        self._reader = threading.Thread(target=self._read, args=(master,), daemon=True)
        self._reader.start()

    def _read(self, master: int) -> None:
        with contextlib.suppress(OSError):  # EIO: nobody holds the other end any more
            while data := os.read(master, 65536):
                self.text += data
        os.close(master)

    def end(self, number: int | None = None) -> str:
        """What it wrote in all, once it has ended."""
        if number is not None:
            self.process.send_signal(number)
        self.process.wait(_PATIENCE_S)
        self._reader.join(_PATIENCE_S)
        return self.text.decode(errors="replace").replace("\r\n", "\n")


def commands(block: str) -> list[str]:
    """The commands of a console block: lines after ``$``, with those that go on after a backslash or an open quote."""
    out: list[str] = []
    open_quote = False
    for line in block.splitlines():
        if line.startswith("$ ") and not open_quote:
            out.append(line[2:])
        elif out and (open_quote or out[-1].endswith("\\")):
            out[-1] += "\n" + line
        else:
            continue
        open_quote = out[-1].count("'") % 2 == 1 or out[-1].count('"') % 2 == 1
    return out


def output(command: str, env: dict[str, str], most: int | None) -> str:
    lines = [line.rstrip() for line in Terminal(["/bin/sh", "-c", command], env).end().splitlines()]
    kept = lines if most is None or len(lines) <= most else [*lines[:most], "..."]
    print(f"$ {command}: {len(lines)} lines", file=sys.stderr)
    return "".join(f"{line}\n" for line in kept)


def rewritten(text: str, env: dict[str, str]) -> str:
    """A page with the outputs of its marked blocks made anew."""

    def again(found: re.Match[str]) -> str:
        most = int(found[2]) if found[2] else None
        return found[1] + "\n".join(f"$ {c}\n{output(c, env, most)}" for c in commands(found[3])) + found[4]

    return BLOCK.sub(again, text)


def until(env: dict[str, str], *args: str, rows: int) -> None:
    """Waits until a verb has so many rows."""
    end = time.monotonic() + _PATIENCE_S
    while True:
        done = subprocess.run(["tickscope", *args, "-o", "json"], env=env, capture_output=True, text=True)
        if done.returncode == 0 and len(json.loads(done.stdout)["rows"]) >= rows:
            return
        if time.monotonic() > end:
            raise TimeoutError(f"tickscope {' '.join(args)}: {done.stdout}{done.stderr}")
        time.sleep(0.5)


@contextlib.contextmanager
def demo() -> Iterator[dict[str, str]]:
    """The demo on a terminal. Yields the environment in which its verbs find it."""
    with tempfile.TemporaryDirectory(prefix="tickscope-docs-", dir="/var/tmp") as name:
        root = Path(name)
        root.chmod(0o755)  # the demo's limiter is nobody
        (root / "tickscope.yaml").write_text("prometheus: ''\n")
        env = {
            **os.environ,
            "TICKSCOPE_RUN_DIR": f"{root}/run",
            "TICKSCOPE_STORE": f"{root}/store",
            "TICKSCOPE_CONFIG": f"{root}/tickscope.yaml",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "TERM": "xterm",
            "TZ": "UTC",
        }
        terminal = Terminal(["tickscope", "demo", "--step-clock"], env)
        try:
            yield {**env, "NO_COLOR": "1"}
        finally:
            terminal.end(signal.SIGINT)


def main() -> None:
    with demo() as env:
        until(env, "query", "finding", "--where", "state = 'closed' and symptom = 'clock_jump'", rows=2)
        until(
            env, "query", "finding", "--where", "state = 'closed' and symptom <> 'clock_jump'", rows=2
        )  # a stall is the last one
        for page in pages():
            before = page.read_text()
            after = rewritten(before, env)
            if after != before:
                page.write_text(after)


if __name__ == "__main__":
    main()
