"""``python -m agent.start FD``: the agent's first lines; the CLI becomes this by exec. The configuration comes as JSON
on the descriptor (agent/main.py).

Helper and clock watch are forked here, before nearly all imports: they keep what they inherit, since the agent
soon has written over its own copy of it, so each module that is imported before them costs its size once more. They
begin when the agent tells them as whom.
"""

from __future__ import annotations

import contextlib
import gc
import sys

from agent.clock import first
from agent.kernel import helper
from agent.posix import proc
from agent.posix.child import fork

TYPE_CHECKING = False  # that of typing, which is large
if TYPE_CHECKING:
    from typing import NoReturn


def _cannot(error: OSError) -> NoReturn:
    from agent.errors import AgentError
    from agent.log import ERROR, log_message

    failed = AgentError(
        "the agent's first processes cannot be started",
        why=f"fork: {error.strerror}",
        remedy=(
            "let it have more processes and memory: TasksMax= and MemoryMax= of its service, ulimit -u; then start"
            " tickscope again"
        ),
    )
    log_message(f"tickscope: {failed}", ERROR)
    sys.exit(failed.exit_code)


def main() -> None:
    gc.freeze()  # a collection would write to each object, and so copy it
    with contextlib.suppress(OSError):  # agent/main.py says what stays hidden
        proc.show_all()
    try:
        small = (
            fork("tickscope-help", helper.serve),
            fork("tickscope-clock", first.serve),
        )
    except OSError as error:
        _cannot(error)
    from agent.common.lean import without_inspect

    with without_inspect():
        from agent.main import main as become

    become(*small)


if __name__ == "__main__":
    main()
