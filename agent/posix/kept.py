"""``Supervised`` by the names that agent/receiver uses, until it uses the supervisor's own."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable

from agent.posix.supervisor import SILENT_S, Restarts, Supervised


class KeptProcess(Supervised):
    """A ``Supervised`` that gives signs of life and is started again."""

    heard, turn, look, tell = Supervised.beat, Supervised.due, Supervised.check, Supervised.report

    def __init__(
        self,
        name: str,
        does: str,
        start: Callable[[], tuple[subprocess.Popen[bytes], socket.socket] | None],
        over: Callable[[], None],
    ) -> None:
        super().__init__(name, does, start, over, silent_s=SILENT_S, restarts=Restarts())
