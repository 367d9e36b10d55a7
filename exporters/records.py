"""Findings that have just opened or closed, as OTLP log records: events in OpenTelemetry's sense (``event_name``). A
finding's span is sent when it closes, with the ids of both records.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from opentelemetry.proto.logs.v1.logs_pb2 import SEVERITY_NUMBER_INFO, SEVERITY_NUMBER_WARN, LogRecord

from exporters.protobuf_pieces import any_value, key_values
from exporters.spans import SpanEncoder
from exporters.values import Value

ToWall = Callable[[np.ndarray], np.ndarray]


#: W3C trace flag: the span with these ids is exported.
_SAMPLED = 1


def records(event: str, rows: np.ndarray, spans: SpanEncoder, to_wall: ToWall, *, sampled: bool) -> list[bytes]:
    """One serialised record per row of ``finding``. event: ``opened`` or ``closed``. sampled: whether spans are
    exported.
    """
    if not len(rows):
        return []
    cells, walls = spans.cells("finding", rows), to_wall(rows["t_ns"]).tolist()
    out = []
    for i, wall in enumerate(walls):
        values: dict[str, Value | None] = {name: column[i] for name, column in cells.items()}
        warns = event == "opened" and values.get("severity") != "notice"
        trace, span, _ = spans.finding_ids(bytes(rows["finding_id"][i]))
        attributes = [
            (spans.attribute_name(name), value)
            for name, value in values.items()
            if value is not None and name != "sentence"
        ]
        out.append(
            LogRecord(
                time_unix_nano=wall,
                observed_time_unix_nano=wall,
                severity_number=SEVERITY_NUMBER_WARN if warns else SEVERITY_NUMBER_INFO,
                severity_text="WARN" if warns else "INFO",
                body=any_value(str(values.get("sentence") or "")),
                attributes=key_values(attributes),
                event_name=f"tickscope.finding.{event}",
                trace_id=trace,
                span_id=span,
                flags=_SAMPLED if sampled else 0,
            ).SerializeToString()
        )
    return out
