"""What the harness runs inside a VM, as root: an agent, prime counts of real operations, two real clock steps of an
hour.

Leaves one JSON document in the file that it is given: what `status` and `query` said, and what was done; with the word
"plans" behind it also what the loader does with each family, which takes minutes more.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

CONNECTS, REFUSED, STEP_S = 23, 7, 3600


def connect() -> int:
    """Accepted connections whose server end only sends, and refused ones; returns the refused port."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        for _ in range(CONNECTS):
            accepted, _ = server.accept()
            with accepted:
                accepted.sendall(b"x" * 101)

    thread = threading.Thread(target=serve)
    thread.start()
    for _ in range(CONNECTS):
        with socket.create_connection(server.getsockname()) as client:
            while client.recv(4096):
                pass
    thread.join()
    port = int(server.getsockname()[1])
    server.close()
    for _ in range(REFUSED):
        with socket.socket() as client:
            assert client.connect_ex(("127.0.0.1", port))
    return port


def step() -> None:
    for by in (STEP_S, -STEP_S):
        time.clock_settime(time.CLOCK_REALTIME, time.clock_gettime(time.CLOCK_REALTIME) + by)
        time.sleep(1)


def plans() -> dict[str, object]:
    """What the loader does with each family here, and what it found in the kernel's type information."""
    from agent.kernel.loaded_families import load, release
    from agent.probes import discover

    loaded = load(list(discover().values()))
    release(loaded)
    families = {name: {"state": f.state, "reason": f.reason, "programs": f.plan} for name, f in loaded.families.items()}
    return {"families": families, "words": loaded.words, "uprobe_multi": loaded.uprobe_multi}


def main() -> None:
    root = Path(tempfile.mkdtemp())
    root.chmod(0o755)
    sys.path.insert(0, str(Path.cwd()))
    from tests.patience import until
    from tests.system.agent import Agent
    from tests.system.test_privilege import held

    (root / "home").mkdir()
    agent = Agent(root / "home").ready(limit_s=90)
    port = connect()
    step()
    # An emulated machine that gets little time takes more than the helper's two seconds for a request: it recovers.
    status = until(lambda: None if "does not answer" in json.dumps(one := agent.status()) else one, each_s=1)
    capabilities = {
        p["role"]: int(Path(f"/proc/{p['pid']}/status").read_text().split("CapEff:")[1].split()[0], 16)
        for p in status["processes"]
    }
    try:
        held(agent)
        privilege = ""
    except AssertionError:
        privilege = traceback.format_exc()
    stopped = agent.stop()
    seen = {table: agent.json("query", table)["rows"] for table in ("tcp_connect", "tcp_close", "clock_change", "loss")}
    seen |= {
        "pid": os.getpid(),
        "port": port,
        "status": status,
        "capabilities": capabilities,
        "privilege": privilege,
        "stopped": stopped,
    }
    if "plans" in sys.argv[2:]:
        seen["plans"] = plans()
    Path(sys.argv[1]).write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
