"""Requests of OTLP as programs send them, and hostile ones: ``python -m tests.unit.otlp_pieces [INPUTS]`` tries a
million.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
import time
from typing import Any

import numpy as np
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from agent.limiters.decision import KEYS, Malformed
from agent.limiters.naming import Names
from agent.receiver.mapping import MEANING, Mapper
from agent.receiver.reading import records
from agent.receiver.receiver_messages import PACKER, TABLE
from agent.receiver.receiver_worker import RequestRefused, unpacked

TRACE, SPAN = bytes(range(16)), bytes(range(8))
BOOT = "2752239a-c739-4f43-818a-b2c872ba988f"
_WORDS: list[object] = [
    "allowed",
    "REFUSED",
    "acquired",
    "",
    "x" * 300,
    True,
    False,
    0,
    -1,
    1 << 62,
    0.5,
    float("nan"),
    float("inf"),
    -1e300,
    "17",
    "\udc80",
    "ü",
]


def mapper(keys: str = "hashed") -> Mapper:
    return Mapper(KEYS[keys], Names(), BOOT)


def put(attributes: Any, given: dict[str, Any]) -> None:
    for key, value in given.items():
        one = attributes.add(key=key).value
        if isinstance(value, bool):
            one.bool_value = value
        elif isinstance(value, int):
            one.int_value = value
        elif isinstance(value, float):
            one.double_value = value
        else:
            one.string_value = value.encode("utf-8", "replace").decode()


def spans(
    *given: dict[str, Any],
    service: str = "shop",
    boot_id: str = "",
    at_ns: int = 0,
    kind: int = 1,
    events: bool = False,
) -> bytes:
    """A request with a span for each set of attributes, which took 700 ns; events: as its events."""
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    put(resource.resource.attributes, {"service.name": service, **({"host.boot.id": boot_id} if boot_id else {})})
    scope = resource.scope_spans.add()
    scope.scope.name, scope.scope.version = "acme.limiter", "3.1"
    end_ns = at_ns or time.time_ns()
    for attributes in given:
        span = scope.spans.add(
            trace_id=TRACE,
            span_id=SPAN,
            name="limit",
            kind=kind,
            start_time_unix_nano=end_ns - 700,
            end_time_unix_nano=end_ns,
        )
        put(
            span.events.add(name="limited", time_unix_nano=end_ns).attributes if events else span.attributes, attributes
        )
    return bytes(request.SerializeToString())


def logs(*given: dict[str, Any], at_ns: int = 0) -> bytes:
    request = ExportLogsServiceRequest()
    scope = request.resource_logs.add().scope_logs.add()
    for attributes in given:
        put(
            scope.log_records.add(
                trace_id=TRACE, span_id=SPAN, observed_time_unix_nano=at_ns or time.time_ns()
            ).attributes,
            attributes,
        )
    return bytes(request.SerializeToString())


def as_json(data: bytes) -> Any:
    """A request of spans, in the JSON of OTLP: ids are hexadecimal."""
    from google.protobuf.json_format import MessageToDict

    request = MessageToDict(ExportTraceServiceRequest.FromString(data))
    for resource in request["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                span.update(traceId=TRACE.hex(), spanId=SPAN.hex())
    return request


def read(signal: str, data: bytes, is_json: bool = False, keys: str = "hashed") -> list[dict[str, Any]]:
    """Decisions of a request. Raises Malformed."""
    one = mapper(keys)
    return [values for record in records(signal, data, is_json) if record and (values := one.decision(record))]


def tried(data: bytes, signal: str, is_json: bool) -> int:
    """How many decisions come of this, each of which fits its table. Raises nothing that the receiver does not
    expect.
    """
    made = 0
    one = mapper()
    try:
        for record in records(signal, data, is_json):
            if record:
                try:
                    values = one.decision(record)
                except Malformed:
                    continue
                if values is not None:
                    (row,) = np.frombuffer(PACKER.pack((values,)), TABLE.dtype)
                    assert row["pid"] == TABLE.by_name["pid"].null and row["t_ns"] >= 0
                    assert all(-1 <= row[c.name] < len(c.names) for c in TABLE.columns if c.kind == "enum")
                    made += 1
    except Malformed:
        pass
    return made


def hostile(rng: random.Random) -> tuple[bytes, str, bool]:
    """Good requests with strange values, and such with bytes changed, cut or repeated."""
    names = [*rng.sample(sorted(MEANING), rng.randint(1, 6)), "rate_limiting.result"]
    given = {name: rng.choice(_WORDS) if rng.random() < 0.3 else 7 for name in names}
    if rng.random() < 0.8:
        given["rate_limiting.result"] = "refused"
    at_ns = rng.choice([0, 1, 1 << 62, (1 << 64) - 1, time.time_ns()])
    variant = rng.randrange(4)
    if variant == 0:
        data, signal = logs(given, at_ns=at_ns), "logs"
    else:
        data, signal = spans(given, at_ns=max(at_ns, 1000), kind=rng.randrange(7), events=variant == 2), "traces"
    is_json = variant == 3
    if is_json:
        data = json.dumps(as_json(data)).encode()
    if rng.random() < 0.7:
        raw = bytearray(data)
        for _ in range(rng.randint(1, 8)):
            at = rng.randrange(len(raw))
            match rng.randrange(4):
                case 0:
                    raw[at] = rng.randrange(256)
                case 1:
                    del raw[at : at + rng.randrange(16)]
                case 2:
                    raw[at:at] = raw[at : at + rng.randrange(32)]
                case 3:
                    raw[at:at] = rng.randbytes(4)
            if not raw:
                break
        data = bytes(raw)
    return data, signal, is_json


def fuzz(count: int, seed: int = 1) -> int:
    """How many decisions came of so many hostile inputs."""
    rng, made = random.Random(seed), 0
    for at in range(count):
        data, signal, is_json = hostile(rng)
        made += tried(data, signal, is_json)
        if not at % 16:
            with contextlib.suppress(RequestRefused):
                unpacked(data)
    return made


if __name__ == "__main__":
    inputs = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    print(f"{fuzz(inputs)} decisions of {inputs} inputs")
