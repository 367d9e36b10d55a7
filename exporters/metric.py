"""The declaration of a metric: its names and units in OTLP and Prometheus, its labels, its buckets."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from agent.columns import Column
from agent.tables import TABLES

#: The label value for rows with another value than the names that the counter started with (OpenTelemetry's own word).
OTHER = "_OTHER"
_PER_UNIT = {"ns": 10**9, "us": 10**6, "ppb": 10**9}
_SUFFIX = {"s": "seconds", "By": "bytes", "1": "ratio"}


@dataclass(frozen=True, eq=False)
class Metric:
    """One metric.

    instrument: ``counter`` (monotonic sum), ``gauge`` (last value) or ``histogram``. unit: UCUM, as in OTLP; a base
    unit (s, By, 1 for a ratio), or what is counted in braces. table: the table of its rows; "" for the agent's own
    state (MetricStore.observe). columns: the columns that become attributes (the series' identity). detail: more of
    them, with the detail ``full``. value: the column that is added, shown or (for single events) counted in a bucket;
    "" counts rows. values: a function of the rows in place of a column: f64 per row, NaN if unknown. raw: the unit of
    that column if it is not ``unit``: ns, us or ppb; series keep raw values, which are divided when shown. bounds:
    powers of two of the raw unit, first and last upper bound of a histogram. coarse: every second of them except with
    ``full``. hist: for rows that are histograms themselves, their sum, min and max columns; "" if the row has none.
    where: (column, names): only rows whose enum has one of these names. absolute: a counter whose rows have a running
    total, not increments. since_start: that total began with the agent. identity: columns that identify a running
    total, if that is more than ``columns``. distinct: a column; each of its values counts once under the same labels.
    label_if: (label, column, value): rows with another value in ``column`` do not have this label. drift: a gauge that
    is the slope of ``value`` over ``t_ns``, in parts per 10^9, not its value. beside: a column and its values whose
    series begin together, at 0 except for the first observed one, if not all label sets are known from the start.
    magnitude: a histogram of absolute values. labels: attributes that every series of this table has. observed: names
    of the attributes of a metric without a table.
    """

    name: str
    unit: str
    instrument: str
    description: str
    table: str
    columns: tuple[str, ...] = ()
    value: str = ""
    raw: str = ""
    bounds: tuple[int, int] = (10, 36)
    coarse: bool = False
    detail: tuple[str, ...] = ()
    hist: tuple[str, str, str] | None = None
    where: tuple[str, tuple[str, ...]] | None = None
    absolute: bool = False
    since_start: bool = False
    identity: tuple[str, ...] = ()
    distinct: str = ""
    label_if: tuple[str, str, str] | None = None
    drift: bool = False
    magnitude: bool = False
    labels: tuple[tuple[str, str], ...] = ()
    observed: tuple[str, ...] = ()
    values: Callable[[np.ndarray], np.ndarray] | None = None
    beside: tuple[str, tuple[str, ...]] | None = None
    single: tuple[str, Callable[[np.ndarray], np.ndarray]] | None = None

    @property
    def exemplified_by(self) -> str:
        """The table whose spans are exemplars of this metric; "" if there is none."""
        if self.instrument != "histogram":
            return ""
        return self.single[0] if self.single else "" if self.hist else self.table

    def full(self) -> Metric:
        """The same with all its detail."""
        return replace(self, columns=self.columns + self.detail, detail=(), coarse=False)

    @property
    def prometheus(self) -> str:
        """The name in Prometheus, by the OpenTelemetry compatibility rules, so that OTLP and the page give the same
        series.
        """
        unit, per, _ = self.unit.partition("/s")
        base, suffix = self.name.replace(".", "_"), "per_second" if per else _SUFFIX.get(unit, "")
        if suffix and not base.endswith(f"_{suffix}"):
            base += f"_{suffix}"
        return f"{base}_total" if self.instrument == "counter" else base

    def shown(self, raw: float) -> float:
        """A series' value in ``unit``. Divided, not multiplied: 1048576 ns is 0.001048576 s to the last bit."""
        return raw / _PER_UNIT[self.raw] if self.raw else raw

    @property
    def integral(self) -> bool:
        """Whether all its values are whole numbers."""
        return (
            not self.drift
            and not self.raw
            and bool(self.table)
            and (not self.value or self.column(self.value).kind in ("i64", "bool"))
        )

    @property
    def powers(self) -> range:
        """Upper bounds of the displayed buckets: 2^p of the raw unit."""
        return range(self.bounds[0], self.bounds[1] + 1, 2 if self.coarse else 1)

    @property
    def upper_bounds(self) -> list[float]:
        """The same in ``unit``."""
        return [self.shown(1 << power) for power in self.powers]

    def place_of(self, bucket: int) -> int:
        """The place among the displayed buckets of one of the 64; the last one is that of +Inf."""
        return bisect.bisect_right(self.powers, bucket)

    @property
    def samples(self) -> int:
        """Samples of one series on the Prometheus page."""
        return len(self.powers) + 3 if self.instrument == "histogram" else 1

    @property
    def bounded(self) -> bool:
        """Whether all its label sets are known from the start, so that it can start at 0. Otherwise ``increase()``
        misses the first event of a series.
        """
        return (
            bool(self.table)
            and self.instrument != "gauge"
            and not self.label_if
            and all(self.column(c).names for c in self.columns)
        )

    def starts(self) -> Iterator[dict[str, object]]:
        """The stored values of each label set that it starts with: all names of each column, and one for any other
        value.
        """
        named = [
            [(c.code(n) if c.kind == "enum" else n.encode()) for n in self.names(c)]
            for c in map(self.column, self.columns)
        ]
        nulls: list[list[object]] = [
            [] if self.where and self.where[0] == c else [self.column(c).null] for c in self.columns
        ]
        for values in itertools.product(*(n + null for n, null in zip(named, nulls, strict=True))):
            yield dict(zip(self.columns, values, strict=True))

    def names(self, column: Column) -> tuple[str, ...]:
        return self.where[1] if self.where and self.where[0] == column.name else column.names

    def column(self, name: str) -> Column:
        return TABLES[self.table].by_name[name]

    def attribute(self, column: str) -> str:
        """The exported attribute name of one of ``columns``."""
        return self.column(column).attribute or f"tickscope.{column}"
