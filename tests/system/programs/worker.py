"""A consumer of a stream of Redis: ``PORT STREAM LOCK``. It locks a file for each message, and works for 3 ms; from
SIGUSR1 on it sleeps for half a second for each, from SIGUSR2 on it computes for that time; the same signal ends that.
"""

from __future__ import annotations

import fcntl
import signal
import sys
import time

import redis

ASLEEP_S, BUSY_S = 0.5, 0.5
port, stream, lock = int(sys.argv[1]), sys.argv[2], sys.argv[3]
does = {"sleep": False, "compute": False}


def turns(name: str) -> None:
    does[name] = not does[name]


signal.signal(signal.SIGUSR1, lambda *_: turns("sleep"))
signal.signal(signal.SIGUSR2, lambda *_: turns("compute"))
server = redis.Redis(port=port)
server.xgroup_create(stream, "workers", id="0", mkstream=True)
while True:
    for _, messages in server.xreadgroup("workers", "worker-1", {stream: ">"}, count=1, block=2000) or []:
        for message, _ in messages:
            with open(lock, "w") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                time.sleep(ASLEEP_S if does["sleep"] else 0.003)
                until = time.thread_time() + (BUSY_S if does["compute"] else 0)
                while time.thread_time() < until:
                    pass
            server.xack(stream, "workers", message)
