"""Asks a Redis at 127.0.0.1:PORT and reports each answer as a decision: limited.py PORT LIMITER INTAKE_SOCKET."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
import time

port, limiter, intake = sys.argv[1:]
while True:
    try:
        redis = socket.create_connection(("127.0.0.1", int(port)))
        break
    except ConnectionRefusedError:
        time.sleep(0.05)
reports = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
while True:
    start_ns = time.perf_counter_ns()
    redis.sendall(b"PING\r\n")
    redis.recv(100)
    reported = {
        "limiter": limiter,
        "result": "allowed",
        "duration_ns": time.perf_counter_ns() - start_ns,
        "tid": threading.get_native_id(),
    }
    with contextlib.suppress(OSError):
        reports.sendto(json.dumps(reported).encode(), socket.MSG_DONTWAIT, intake)
    time.sleep(0.02)
