"""The metrics page: ``GET /metrics``, from the same store as OTLP, as Prometheus text or OpenMetrics, compressed on
request.

prometheus_client is not used: it has its own registry (each series would be stored twice), costs 5 MB, and its server
does not limit slow clients (exporters/page_server.py does).
"""

from __future__ import annotations

import gzip
import time
from collections.abc import Mapping

from agent.common.fairness import UpperBound
from exporters.aggregate import MetricStore
from exporters.exposition import TYPES, render
from exporters.page_request import Wanted, parse
from exporters.page_server import ANSWER_S, MAX_CONNECTIONS, REQUEST_S, PageServer
from exporters.page_settings import MAX_SAMPLES, MetricsSettings

#: A page of 0.5 MB takes 6 ms at this level, and shrinks to a tenth; the next levels cost twice as much for 5 % less.
_GZIP_LEVEL = 4
#: A page is made again after this time, and after this multiple of the time it took: clients that poll without a pause
#: cannot take the CPU.
FRESH_S, _REST = 0.2, 5
#: For docs/limits.md.
BOUNDS = (
    UpperBound(
        "metrics",
        "samples of events on the metrics page and over OTLP",
        MAX_SAMPLES,
        "summed under `otel_metric_overflow`; gauges are left out",
        "`tickscope_metrics_overflowed_total`",
        setting="`metrics: {samples: N}`",
    ),
    UpperBound(
        "metrics",
        "connections to the metrics page",
        MAX_CONNECTIONS,
        "closed; each remote address counts as a user",
        "`tickscope_page_dropped_total`, `status` (`export`)",
        shared=True,
    ),
    UpperBound(
        "metrics",
        "time for a request of the metrics page to arrive; for the client to read the answer",
        f"{REQUEST_S:g} s; {ANSWER_S:g} s",
        "closed",
        "`tickscope_page_dropped_total`, `status` (`export`)",
    ),
)


class PrometheusEndpoint(PageServer):
    """Serves metrics until closed. resource: exported as ``target_info``."""

    name = "prometheus"

    def __init__(
        self,
        address: tuple[str, int],
        store: MetricStore,
        resource: Mapping[str, str],
        config: MetricsSettings | None = None,
    ) -> None:
        self._store, self._resource, self._config = store, dict(resource), config or MetricsSettings()
        self._hosts = {name.lower() for name in (*self._config.hosts, address[0])}
        self._pages: dict[tuple[bool, bool], bytes] = {}
        self._stale_at = 0.0
        super().__init__(
            address,
            "metrics",
            "see who has it (ss -ltnp), or set prometheus: to another address:port, or to '' for none",
        )

    def reply(self, request: bytes) -> tuple[int, bytes]:
        wanted = parse(request, self._hosts)
        return int(wanted.status[:3]), self._answer(wanted)

    def _answer(self, wanted: Wanted) -> bytes:
        kind, body, coding = TYPES[False], f"{wanted.text}\n".encode(), b""
        if wanted.status.startswith("200"):
            kind, body = TYPES[wanted.openmetrics], self._page(wanted.openmetrics, wanted.gzip)
            coding = b"Content-Encoding: gzip\r\n" if wanted.gzip else b""
        head = (
            b"HTTP/1.1 %b\r\nContent-Type: %b\r\nContent-Length: %d\r\n%bVary: Accept, Accept-Encoding\r\nConnection:"
            b" close\r\n\r\n" % (wanted.status.encode(), kind, len(body), coding)
        )
        return head if wanted.head_only else head + body

    def _page(self, openmetrics: bool, zipped: bool) -> bytes:
        """The page in one of its four forms, cached for a moment."""
        began = time.monotonic()
        if began >= self._stale_at:
            self._pages.clear()
        if (openmetrics, zipped) not in self._pages:
            plain = self._pages.get((openmetrics, False))
            if plain is None:
                plain = render(self._store.collect(), self._resource, openmetrics=openmetrics).encode()
                self._pages[openmetrics, False] = plain
            if zipped:
                self._pages[openmetrics, True] = gzip.compress(plain, _GZIP_LEVEL, mtime=0)
            self._failure = ""
            now = time.monotonic()
            self._stale_at = max(self._stale_at, began + FRESH_S) + _REST * (now - began)
        return self._pages[openmetrics, zipped]
