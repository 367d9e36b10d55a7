"""The agent on an idle machine: ``python -m tests.bench.idle [--seconds N]``.

Processor time of all its processes, in percent of one core. The machine must be idle: what else ran is printed beside
it.
"""

from __future__ import annotations

import os
import time

from tests.bench.common import arguments, cpu_s, report, running
from tests.bench.memory import descendants

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def machine_busy_s() -> float:
    """Processor time of everything on the machine since its start (user, nice, system, irq, softirq)."""
    with open("/proc/stat") as stat:
        user, nice, system, _, _, irq, softirq, *_ = map(int, stat.readline().split()[1:])
    return (user + nice + system + irq + softirq) * _TICK_S


def main() -> None:
    given = arguments(__doc__, seconds=(30.0, "to watch"))
    with running(settle_s=5) as agent:
        roles = {p["pid"]: p["role"] for p in agent.status()["processes"]}
        before = {pid: cpu_s(pid) for pid in descendants(agent.process.pid)}
        busy, start = machine_busy_s(), time.monotonic()
        time.sleep(given.seconds)
        took = time.monotonic() - start
        used = {pid: (cpu_s(pid) - spent) / took * 100 for pid, spent in before.items()}
        others = (machine_busy_s() - busy) / took * 100 - sum(used.values())
    parts = ", ".join(f"{roles.get(pid, pid)} {percent:.2f}" for pid, percent in used.items())
    what = f"{sum(used.values()):.2f} % of a core ({parts}); everything else {others:.1f} %"
    report(f"CPU on an idle machine, {took:.0f} s", what, "-", "< 2 %")


if __name__ == "__main__":
    main()
