"""The committed dashboard is what its code makes, and every label a panel groups by is one that the metric has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dashboards import overview
from exporters.metrics import METRICS


def test_committed_json_is_current() -> None:
    assert Path(overview.__file__).with_suffix(".json").read_text() == overview.text()


@pytest.mark.parametrize(
    "panel", [p for p in overview.dashboard()["panels"] if p["type"] != "row"], ids=lambda p: str(p["title"])
)
def test_panels_name_series_that_exist(panel: dict[str, object]) -> None:
    expression = str(panel["targets"][0]["expr"])  # type: ignore[index]
    metrics = [m for m in METRICS if re.search(rf"\b{m.prometheus}(_bucket)?\b", expression)]
    assert metrics
    labels = {
        re.sub(r"\W", "_", name)
        for m in metrics
        for name in (*map(m.attribute, m.columns), *dict(m.labels), *m.observed)
    }
    grouped = re.search(r"by \(([^)]*)\)", expression)
    assert set(grouped.group(1).split(", ") if grouped else []) <= labels | {"le"}
