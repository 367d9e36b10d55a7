"""What the OTLP receiver's process takes for a span, on the processor, by protobuf and JSON: ``python -m
tests.bench.otlp_receiver``.
"""

from __future__ import annotations

import json
import time

from agent.receiver.reading import records
from agent.receiver.receiver_messages import PACKER
from tests.unit.otlp_pieces import as_json, mapper, spans

_SPANS, _ROUNDS = 500, 21
_DECISION = {
    "rate_limiting.result": "refused",
    "rate_limiting.limiter.name": "pay",
    "rate_limiting.key": "c17",
    "ratelimit.limit": 40,
    "ratelimit.remaining": 0,
}
_OTHER = {
    "http.route": "/pay",
    "http.response.status_code": 200,
    "url.path": "/pay",
    "server.address": "shop",
    "http.request.method": "GET",
}


def main() -> None:
    one = mapper()
    for what, attributes in (("decision", _DECISION), ("other span", _OTHER)):
        data = spans(*[attributes] * _SPANS)
        for kind, body in (("protobuf", data), ("JSON", json.dumps(as_json(data)).encode())):
            took = []
            for _ in range(_ROUNDS):
                begun_ns = time.process_time_ns()
                for record in records("traces", body, kind == "JSON"):
                    if record and (values := one.decision(record)):
                        PACKER.pack((values,))
                took.append((time.process_time_ns() - begun_ns) / _SPANS / 1000)
            print(f"{what}, {kind}: {sorted(took)[_ROUNDS // 2]:.1f} us ({min(took):.1f}-{max(took):.1f}, n={_ROUNDS})")


if __name__ == "__main__":
    main()
