"""Puts code into the agent from outside, for what no program or setting can bring about."""

from __future__ import annotations

import contextlib
import os
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def injected(code: str) -> Iterator[dict[str, str]]:
    """While in the block, Python processes of this environment that are started with the environment it gives run
    ``code`` first: a ``.pth`` file does that also for ``python -I``, which the agent's launcher uses.
    """
    name = f"TICKSCOPE_TEST_CODE_{os.getpid()}"
    hook = Path(sysconfig.get_path("purelib")) / f"{name.lower()}.pth"
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)  # the agent's user reads it
        script = Path(directory) / "code.py"
        script.write_text(code)
        hook.write_text(f"import os; p = os.environ.get({name!r}); p and exec(open(p).read(), {{}})\n")
        try:
            yield {name: str(script)}
        finally:
            hook.unlink()
