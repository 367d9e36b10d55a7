"""Metric series as the text of a page: Prometheus 0.0.4, or OpenMetrics 1.0 on request. Pure.

https://prometheus.io/docs/instrumenting/exposition_formats/ and https://prometheus.io/docs/specs/om/open_metrics_spec/.
Names and units follow the OpenTelemetry compatibility rules (Metric.prometheus). ``_created`` is optional and left out:
Prometheus would store it as one more series each. A histogram's ``le`` is the upper end of our bucket, which is
exclusive in ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from exporters.fold import MetricSeries
from exporters.metric import Metric
from exporters.values import Value

TYPES = {
    False: b"text/plain; version=0.0.4; charset=utf-8",
    True: b"application/openmetrics-text; version=1.0.0; charset=utf-8",
}


def render(
    collected: Iterable[tuple[Metric, list[MetricSeries]]],
    resource: Mapping[str, str],
    *,
    openmetrics: bool = False,
) -> str:
    """The whole page."""
    kind, family = ("info", "target") if openmetrics else ("gauge", "target_info")
    out = [
        f"# HELP {family} Target metadata",
        f"# TYPE {family} {kind}",
        f"target_info{_braces(_label_pairs(tuple(resource.items())))} 1",
    ]
    for metric, series in collected:
        out += _family(metric, series, openmetrics)
    return "\n".join(out) + ("\n# EOF\n" if openmetrics else "\n")


def _family(metric: Metric, series: list[MetricSeries], openmetrics: bool) -> Iterator[str]:
    name = metric.prometheus
    family = name.removesuffix("_total") if openmetrics and metric.instrument == "counter" else name
    yield f"# HELP {family} {metric.description}"
    yield f"# TYPE {family} {metric.instrument}"
    unit = next((u for u in ("seconds", "bytes", "ratio") if family.endswith(f"_{u}")), "")
    if openmetrics and unit:
        yield f"# UNIT {family} {unit}"
    for s in series:
        labels = _label_pairs(s.attributes)
        if metric.instrument == "histogram":
            yield from _histogram(name, metric, s, labels, _exemplars(metric, s) if openmetrics else {})
        else:
            yield f"{name}{_braces(labels)} {_number(metric.shown(s.value))}"


def _histogram(name: str, metric: Metric, s: MetricSeries, labels: str, exemplars: Mapping[int, str]) -> Iterator[str]:
    """exemplars: by the place of the bucket."""
    below, comma = s.buckets.cumsum(), "," if labels else ""
    for place, power in enumerate(metric.powers):
        bound = f'{name}_bucket{{{labels}{comma}le="{metric.shown(1 << power)!r}"}}'
        yield f"{bound} {int(below[power - 1])}{exemplars.get(place, '')}"
    yield f'{name}_bucket{{{labels}{comma}le="+Inf"}} {s.count}{exemplars.get(len(metric.powers), "")}'
    yield f"{name}_sum{_braces(labels)} {_number(metric.shown(s.value))}"
    yield f"{name}_count{_braces(labels)} {s.count}"


def _exemplars(metric: Metric, s: MetricSeries) -> dict[int, str]:
    """The latest of each displayed bucket, as the end of its line."""
    latest = {metric.place_of(bucket): one for bucket, one in sorted(s.exemplars.items(), key=lambda e: e[1].seen_ns)}
    return {
        place: f' # {{trace_id="{one.trace_id.hex()}",span_id="{one.span_id.hex()}"}}'
        f" {_number(metric.shown(one.value))} {one.wall_ns / 1e9:.3f}"
        for place, one in latest.items()
    }


def _label_pairs(attributes: tuple[tuple[str, Value], ...]) -> str:
    """``a="1",b="2"``; if two attributes become the same label, the first stays."""
    named: dict[str, Value] = {}
    for key, value in attributes:
        named.setdefault(_label_name(key), value)
    return ",".join(f'{k}="{_escaped(v)}"' for k, v in named.items())


def _braces(labels: str) -> str:
    return f"{{{labels}}}" if labels else ""


def _label_name(attribute: str) -> str:
    name = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in attribute)
    return name if name and not name[0].isdigit() else f"_{name}"


def _escaped(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value).replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
