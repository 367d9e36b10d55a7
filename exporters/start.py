"""Starts OTLP and the metrics page as configured. The agent's side: parts that are not configured are not imported."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from agent.common.version import VERSION
from agent.errors import AgentError
from agent.log import log_message

if TYPE_CHECKING:
    from agent.contracts import Sink
    from exporters.aggregate import MetricStore
    from exporters.otlp_settings import OtlpSettings
    from exporters.page_settings import PageSettings
    from exporters.process_resource import PlaceOf
    from exporters.prometheus import PrometheusEndpoint


class Exports(NamedTuple):
    """missing: configured parts that could not be started -> why."""

    sinks: list[Sink]
    metrics: MetricStore | None
    page: PrometheusEndpoint | None
    missing: dict[str, str]


def start(page: PageSettings, otlp: OtlpSettings, boot: str, history: Any, place_of: PlaceOf) -> Exports:
    """OTLP and the Prometheus page; neither is imported unless it is configured. place_of: see OtlpExporter."""
    if not otlp.enabled and not page.prometheus:
        return Exports([], None, None, {})
    from exporters.aggregate import MetricStore
    from exporters.limiter_use import LimiterUse
    from exporters.open_findings import OpenFindings
    from exporters.resource import describe

    metrics = MetricStore(max_samples=page.metrics.max_samples, full=page.metrics.detail == "full")
    resource, missing, served = describe(boot, os.environ, VERSION, otlp.resource), {}, None
    sinks: list[Sink] = [metrics, LimiterUse(metrics), OpenFindings(metrics, resource.get("host.name", ""))]
    if otlp.enabled:
        from exporters.otlp import OtlpExporter

        sinks.append(OtlpExporter(otlp, resource, lambda t_ns: history.to_wall(t_ns).ns, metrics, place_of))
    if page.prometheus:
        from exporters.prometheus import PrometheusEndpoint

        try:
            served = PrometheusEndpoint(page.address, metrics, resource, page.metrics)
        except AgentError as error:
            missing["prometheus"] = f"{error.what}: {error.why}"
            log_message(f"tickscope: {error}")
    return Exports(sinks, metrics, served, missing)
