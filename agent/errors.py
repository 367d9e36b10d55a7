"""The one exception that the CLI turns into a message and an exit status, and the agent's own notes."""

from __future__ import annotations

import contextlib
import sys

FAILURE, USAGE, NO_ROWS, UNREACHABLE, PRIVILEGE, INTERRUPTED = 1, 2, 3, 4, 5, 130


class AgentError(Exception):
    """What failed, on what, why, and the next command to run.

    exit_code: the exit status of CONTRACT (1 failure, 2 usage, 4 agent or store not reachable, 5 privilege or kernel).
    """

    def __init__(self, what: str, *, why: str = "", remedy: str = "", exit_code: int = FAILURE) -> None:
        super().__init__(what)
        self.what, self.why, self.remedy, self.exit_code = what, why, remedy, exit_code

    def __str__(self) -> str:
        lines = [self.what]
        if self.why:
            lines.append(f"  why: {self.why}")
        if self.remedy:
            lines.append(f"  try: {self.remedy}")
        return "\n".join(lines)


def printable(name: str | bytes) -> str:
    """A name that others chose, for people: bytes that are not UTF-8 as ``\\xff``, and so whatever would act on a terminal (``\\x1b``, ``\\n``)."""
    text = name.decode(errors="surrogateescape") if isinstance(name, bytes) else name
    return text if text.isprintable() else "".join(c if c.isprintable() else _code(c) for c in text)


def _code(character: str) -> str:
    if "\udc80" <= character <= "\udcff":
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode()


def say(text: str) -> None:
    """A line of the agent on stderr. That the terminal or the reader of a pipe has gone must not stop it."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)
