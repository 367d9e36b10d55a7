"""Common to all Python limiters of the workload: they decide at an even rate, report to the agent's intake, and log."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from typing import Any

from agent.common.clocks import boot_ns
from agent.lab.program import LabProgram, Run


def api(
    name: str,
    serve: Callable[[Run], None],
    *uses: str,
    per_s: float = 15.0,
    limit: int = 40,
    group: str = "",
    root: bool = False,
    **settings: Any,
) -> LabProgram:
    """A program whose body ``decide``s."""
    settings = {"per_s": per_s, "limit": limit, **settings}
    return LabProgram(name, serve, settings=settings, names=(f"lab:{name}",), uses=uses, group=group, root=root)


def decide(run: Run, check: Callable[[], int]) -> None:
    """``settings``: ``per_s``, ``limit``. check: returns what is left, negative for a refusal; raises OSError if it
    fails.
    """
    run.listen()
    reports = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    tick = run.every(1)
    while True:
        tick.per_s = run.settings["per_s"]
        tick()
        start_ns, left = boot_ns(), 0
        try:
            left = check()
            result = "refused" if left < 0 else "allowed"
        except OSError:
            result = "error"
        end_ns = boot_ns()
        run.log("decide", start_ns, {"allowed": "ok"}.get(result, result), end_ns)
        decision = {
            "limiter": run.program.limiter,
            "result": result,
            "key": "customer",
            "cost": 1,
            "limit_per_s": float(run.settings["limit"]),
            "duration_ns": end_ns - start_ns,
            "tid": threading.get_native_id(),
        }
        if result != "error":
            decision["remaining"] = max(0, left)
        # Without an agent, or with a full queue, the report is lost: a program must not wait for its observer.
        with contextlib.suppress(OSError):
            reports.sendto(json.dumps(decision).encode(), socket.MSG_DONTWAIT, str(run.intake))
