"""A consumer of a Redis stream that reports each entry to the intake and acknowledges it at once, or holds all that it
got: python consume.py URL INTAKE NAME take|hold. It takes over what another one held for a second.
"""

import json
import socket
import sys
import time

from agent.common.resp import RedisUrl, RespClient

url, intake, name, what = sys.argv[1:]
redis = RespClient(RedisUrl.parse(url), timeout_s=10)
out = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
out.connect(intake)
while True:
    (claimed,) = redis.pipeline([("XAUTOCLAIM", "orders", "billing", name, 1000, "-", "COUNT", 50)])
    (read,) = redis.pipeline([("XREADGROUP", "GROUP", "billing", name, "COUNT", 50, "STREAMS", "orders", ">")])
    for entry, fields in [*(claimed[1] if what == "take" else ()), *(read[0][1] if read else ())]:
        number = int(fields[1])
        report = {"message": entry.decode(), "queue": "orders", "group": "billing", "system": "redis", "seq": number}
        out.send(json.dumps(report).encode())
        if what == "take":
            redis.pipeline([("XACK", "orders", "billing", entry)])
    time.sleep(0.02)
