"""Encoding and sending with the oldest and the newest release of the OTLP packages that setup.py allows."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers.otlp_load import SPANS
from tests.servers.strict_receiver import Answer, StrictReceiver

ROOT = Path(__file__).parents[2]
ALLOWED = re.search(r'"opentelemetry-exporter-otlp(>=([\d.]+),<\d+)"', (ROOT / "setup.py").read_text(encoding="utf-8"))
assert ALLOWED
RANGE, OLDEST = ALLOWED.groups()
PROGRAM = """
import json, sys
from importlib.metadata import version
from agent.common.clocks import boot_ns
from exporters.aggregate import MetricStore
from tests.patience import until
from tests.servers.otlp_load import SPANS, exporter, workload
port, protocol = sys.argv[1:]
store = MetricStore()
sink = exporter(f"http://127.0.0.1:{port}", store, protocol=protocol, compression="gzip", interval_s=3600)
for batch in workload(boot_ns()):
    store.offer(batch)
    sink.offer(batch)
until(lambda: sum(sink.state()[k] for k in ("sent_spans", "rejected")) == SPANS)
sink.close()
import google.protobuf, opentelemetry.proto.trace.v1.trace_pb2 as messages
files = [google.protobuf.__file__, messages.__file__]
print(json.dumps({"version": version("opentelemetry-exporter-otlp"), "files": files, **sink.state()}))
"""


@pytest.fixture(scope="module", params=[f"=={OLDEST}.*", RANGE], ids=["oldest", "newest"])
def release(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with that release and all that it needs."""
    place = tmp_path_factory.mktemp("release")
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--retries=1",
        "--prefer-binary",
        "--no-compile",
        f"--target={place}",
        f"opentelemetry-exporter-otlp{request.param}",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode and ("NewConnectionError" in done.stderr or "from versions: none" in done.stderr):
        pytest.skip(f"the package index cannot be reached: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return place


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_all_arrives_valid_and_what_is_rejected_is_read(release: Path, protocol: str) -> None:
    with StrictReceiver(grpc=protocol == "grpc") as receiver:
        # the span of a finding, its log records while the span waits, the span again, the spans of operations
        receiver.answers.extend([Answer(status=503), Answer(), Answer(), Answer(rejected=2, message="two too many")])
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(receiver.port), protocol],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "PYTHONPATH": f"{release}:{ROOT}"},
        )
        assert done.returncode == 0, done.stderr
        state = json.loads(done.stdout)
        assert all(file.startswith(str(release)) for file in state["files"])
        assert receiver.violations == []
        assert (state["sent_spans"] + state["rejected"], state["dropped"], state["state"]) == (SPANS, 0, "ok")
        assert (state["rejected"], state["sent_points"] > 0) == (2, True)
        assert {m.name for m in receiver.metrics} >= {"tickscope.tcp.rtt", "tickscope.tcp.retransmits"}
