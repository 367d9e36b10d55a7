"""A sliding window on the wall clock that re-anchors at clock jumps: python3 reanchor.py [NOTICE_SOCKET]. Standard
library only.
"""

import contextlib
import json
import socket
import sys
import threading
import time


class SlidingWindow:
    """At most ``limit`` a ``window_ns`` of wall time."""

    def __init__(self, limit: int, window_ns: int) -> None:
        self.limit, self.window_ns, self.lock = limit, window_ns, threading.Lock()
        self.stamps: list[int] = []

    def allow(self) -> bool:
        with self.lock:
            now = time.time_ns()
            self.stamps = [t for t in self.stamps if t > now - self.window_ns]
            if len(self.stamps) >= self.limit:
                return False
            self.stamps.append(now)
            return True


# The lines to copy, in a thread of their own: every stamp moves with the clock, so that the window keeps its true
# length. A request between the jump and its notice (under a millisecond) counts as made before it, unless that would
# put it into the future.
def follow(limiter: SlidingWindow, name: str, path: str = "/run/tickscope/notices.sock") -> None:
    while True:
        with contextlib.suppress(OSError, ValueError), socket.socket(socket.AF_UNIX) as sock:
            sock.connect(path)
            for line in sock.makefile("rb"):
                notice = json.loads(line)
                with limiter.lock:
                    now, size = time.time_ns(), notice["size_ns"]
                    limiter.stamps = [t + size if t + size <= now else t for t in limiter.stamps]
                with contextlib.suppress(BlockingIOError):  # nobody listens: it stays pending
                    sock.send(json.dumps({"ack": notice["id"], "limiter": name}).encode() + b"\n", socket.MSG_DONTWAIT)
                print(f"re-anchored {len(limiter.stamps)} stamps by {size} ns", flush=True)
        time.sleep(1)  # no agent yet, or the connection ended: there may be another one


if __name__ == "__main__":
    window = SlidingWindow(5, 60 * 10**9)
    threading.Thread(target=follow, args=(window, "example", *sys.argv[1:2]), daemon=True).start()
    for _ in sys.stdin:  # a line is a request
        print("allowed" if window.allow() else "refused", flush=True)
