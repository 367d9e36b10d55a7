"""Programs that report their limiters by OpenTelemetry: the kernel names their process, and what is exported of them
joins their traces.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

from tests.patience import PATIENCE, until
from tests.ports import free_port
from tests.servers.strict_receiver import StrictReceiver
from tests.system.agent import Agent

#: Five refusals, within a span of the program's own.
PROGRAM = """
import sys
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
provider = TracerProvider(resource=Resource({"service.name": "shop"}))
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"http://127.0.0.1:{sys.argv[1]}/v1/traces")))
tracer = provider.get_tracer("acme")
with tracer.start_as_current_span("pay") as pay:
    for _ in range(5):
        with tracer.start_as_current_span("limit") as limit:
            limit.set_attributes({"rate_limiting.result": "refused", "rate_limiting.policy": "http"})
        print(format(pay.get_span_context().trace_id, "032x"), format(limit.get_span_context().span_id, "016x"))
provider.shutdown()
"""


def test_decisions_have_their_process_and_their_trace(start: Callable[..., Agent]) -> None:
    http = free_port()
    collector = StrictReceiver()
    try:
        agent = start(
            config=(
                f"prometheus: ''\notlp_receiver: {{http: {http}}}\notlp: {{endpoint:"
                f" 'http://127.0.0.1:{collector.port}', decisions: all}}\n"
            )
        ).ready()
        with subprocess.Popen([sys.executable, "-c", PROGRAM, str(http)], stdout=subprocess.PIPE, text=True) as program:
            printed = program.communicate(timeout=60 * PATIENCE)[0].split()
        reported = set(zip(printed[::2], printed[1::2], strict=True))
        rows = agent.rows("limiter_decision", "source = 'otlp'", 5)
        assert {(row["trace_id"], row["span_id"]) for row in rows} == reported
        assert len(rows) == 5
        assert {(row["pid"], row["comm"], row["limiter_id"], row["wall_state"]) for row in rows} == {
            (program.pid, rows[0]["comm"], "shop:http", "exact")
        }
        assert rows[0]["comm"].startswith("python")

        def joined() -> set[tuple[str, str]]:
            refused = [span for span in collector.spans if span.name == "decision refused"]
            return {(span.trace_id.hex(), span.parent_span_id.hex()) for span in refused}

        until(lambda: reported <= joined())  # this host has other limiters, too
        assert not collector.violations
        state = agent.status()["otlp_receiver"]
        assert (state["http"], state["decisions"], state["ignored"], state["invalid"]) == (
            f"127.0.0.1:{http}",
            5,
            1,
            0,
        )
        receiver = next(p for p in agent.status()["processes"] if p["role"] == "otlp receiver")
        assert (int(receiver["cap_eff"], 16), receiver["no_new_privs"]) == (0, True)
        assert receiver["uid"] != 0
        assert agent.stop() == 130
    finally:
        collector.close()
