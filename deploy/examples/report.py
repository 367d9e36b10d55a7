"""Reporting a limiter's decisions to tickscope without ever waiting for it: python3 report.py [INTAKE_SOCKET].
Standard library only.
"""

import json
import socket
import sys


# The lines to copy; one object a thread. What cannot be sent (no agent, or it is behind) is counted, and reported with
# the next that can: a row of `loss`.
class Decisions:
    def __init__(self, path: str = "/run/tickscope/intake.seq.sock") -> None:
        self.path, self.dropped, self.sock = path, 0, None

    def report(self, limiter: str, result: str, **more: object) -> None:
        try:
            if self.sock is None:
                self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                self.sock.setblocking(False)
                self.sock.connect(self.path)
            self.sock.send(json.dumps({"limiter": limiter, "result": result, "dropped": self.dropped, **more}).encode())
            self.dropped = 0
        except OSError as error:
            self.dropped += 1
            if self.sock is not None and not isinstance(
                error, BlockingIOError
            ):  # it has ended: the next finds a new one
                self.sock.close()
                self.sock = None


if __name__ == "__main__":
    decisions = Decisions(*sys.argv[1:2])
    for line in sys.stdin:  # a line is a request's key
        decisions.report("example", "allowed", key=line.strip(), duration_ns=812_000)
        print(f"{decisions.dropped} to be reported", flush=True)
