"""OTLP and the metrics page as configured. The agent's side: what is not configured is not imported."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from agent.common.version import VERSION
from agent.errors import AgentError
from agent.log import say

if TYPE_CHECKING:
    from agent.config import Config
    from agent.contracts import Sink
    from exporters.aggregate import MetricStore
    from exporters.prometheus import PrometheusEndpoint


class Exports(NamedTuple):
    """missing: what was configured and is not there -> why."""

    sinks: list[Sink]
    metrics: MetricStore | None
    page: PrometheusEndpoint | None
    missing: dict[str, str]


def start(config: Config, boot: str, history: Any) -> Exports:
    """OTLP and the Prometheus page; neither is imported unless it is configured."""
    from exporters.otlp_settings import resolve, resource_attributes

    otlp = resolve(config.otlp, os.environ, {})
    if not otlp.enabled and not config.prometheus:
        return Exports([], None, None, {})
    from exporters.aggregate import MetricStore
    from exporters.limiter_use import LimiterUse
    from exporters.page_settings import PageConfig, listen_address
    from exporters.resource import describe

    page = PageConfig.parse(config.metrics)
    metrics = MetricStore(max_samples=page.max_samples, full=page.detail == "full")
    given = resource_attributes(config.otlp)
    resource, missing, served = describe(boot, os.environ, VERSION, given), {}, None
    sinks: list[Sink] = [metrics, LimiterUse(metrics)]
    if otlp.enabled:
        from exporters.otlp import OtlpExporter

        sinks.append(OtlpExporter(otlp, resource, lambda t_ns: history.to_wall(t_ns).ns, metrics))
    if config.prometheus:
        from exporters.prometheus import PrometheusEndpoint

        try:
            served = PrometheusEndpoint(listen_address(config.prometheus), metrics, resource, page)
        except AgentError as error:
            missing["prometheus"] = f"{error.what}: {error.why}"
            say(f"tickscope: {error}")
    return Exports(sinks, metrics, served, missing)
