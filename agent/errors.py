"""The one exception that the CLI turns into a message and an exit status."""

from __future__ import annotations

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
