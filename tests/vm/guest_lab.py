"""In the VM: sessions of the laboratory with a small workload, whose clock is moved by hours. tests/vm/lab.py starts
it.

What a session leaves is copied to the last argument when it is whole: a file of the host's costs an emulated machine
much with each line.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent.errors import AgentError
from agent.lab.kind import Kind, kinds
from agent.lab.plan import seeds, session
from agent.lab.program import LabProgram, programs
from agent.lab.session import LabSession
from agent.lab.stage.wallclock import require_throwaway
from agent.lab.truth import FILE
from tests.patience import PATIENCE

#: Limiters and leases that go by the wall clock, their Redis, and a queue; for faults of the link, who uses that.
WORKLOAD, FAR_SIDE = ("redis", "api-redis", "leases", "producer", "consumer1"), ("link", "redis-far", "api-redis-far")
#: Of what the programs do on a real machine in a second; of that, what limiters allow: they are always at their limit,
#: as slow as the machine may be.
RATE, ALLOWED = 0.4, 0.4


def workload(chosen: Sequence[Kind]) -> dict[str, LabProgram]:
    """With less to do."""
    there, names = programs(), [*WORKLOAD, *(FAR_SIDE if any("link" in kind.targets for kind in chosen) else ())]
    return {name: replace(there[name], settings=_slow(there[name].settings)) for name in names}


def _slow(settings: Mapping[str, Any]) -> dict[str, Any]:
    less = {"per_s": settings.get("per_s", 0.0) * RATE}
    less["limit"] = less["per_s"] * ALLOWED
    return {key: less.get(key, value) for key, value in settings.items()}


def main() -> int:
    require_throwaway()
    first, runs, each, out, *names = sys.argv[1:]
    known, failed = kinds(), 0
    chosen = [known[name] for name in names]
    small = workload(chosen)
    for seed, faults in seeds(int(first), int(runs), int(each)):
        kept = Path(out) / f"{seed:07d}"
        if (kept / FILE).exists():  # the emulator broke this machine once, and it was started again
            continue
        with tempfile.TemporaryDirectory() as scratch:
            place = Path(scratch) / "session"
            try:
                LabSession(session(chosen, seed, faults, small), seed, place, workload=small, patience=PATIENCE).play()
            except AgentError as error:
                print(f"session {seed}: {error}", file=sys.stderr)
                failed += 1
                continue
            shutil.copytree(place, kept.with_suffix(".part"), dirs_exist_ok=True)
            kept.with_suffix(".part").rename(kept)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
