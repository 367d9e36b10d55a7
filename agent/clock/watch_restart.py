"""Restarts the clock watch as a new program, since the agent has become too large to fork.

``python -m agent.clock.watch_restart AGENT NOTICES REPORT PULSE STEPS PARENT COUNTS``: descriptors (STEPS may be -1),
the agent's pid, and the previous watch's counts as JSON. The agent is no longer root: real-time priority comes from the
RLIMIT_RTPRIO that was set while it was (agent/clock/watch_process.py).
"""

from __future__ import annotations

import json
import signal
import socket
import sys

from agent.clock.watch import run_watch, set_priority
from agent.posix import privilege


def main() -> None:
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    agent, notices, report, heartbeat, steps, parent = map(int, sys.argv[1:7])
    privilege.keep_only(*(fd for fd in (agent, notices, report, heartbeat, steps) if fd >= 0))
    privilege.set_name("tickscope-clock")
    set_priority()
    privilege.give_up_all(parent)
    run_watch(
        socket.socket(fileno=agent),
        socket.socket(fileno=notices),
        socket.socket(fileno=report),
        heartbeat,
        steps,
        json.loads(sys.argv[7]),
    )


if __name__ == "__main__":
    main()
