"""A real Prometheus."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dashboards import alerts
from tests.patience import listening
from tests.ports import free_port
from tests.servers.process import ServerProcess

RULES = [Path(alerts.__file__).with_name(name) for name in alerts.FILES]


class Prometheus(ServerProcess):
    """Scrapes pages and evaluates our rules twice a second. targets: port of each page, by instance."""

    def __init__(self, directory: Path, targets: Mapping[str, int], alertmanager: int = 0) -> None:
        self.directory, self.port = directory, free_port()
        config: dict[str, Any] = {
            "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"},
            "rule_files": list(map(str, RULES)),
            "scrape_configs": [
                {
                    "job_name": "tickscope",
                    "static_configs": [
                        {"targets": [f"127.0.0.1:{port}"], "labels": {"instance": name}}
                        for name, port in targets.items()
                    ],
                }
            ],
        }
        if alertmanager:
            to = {"static_configs": [{"targets": [f"127.0.0.1:{alertmanager}"]}]}
            config["alerting"] = {"alertmanagers": [to]}
        (directory / "prometheus.yml").write_text(json.dumps(config))
        self.run(
            [
                "prometheus",
                f"--config.file={directory}/prometheus.yml",
                f"--storage.tsdb.path={directory}/data",
                f"--web.listen-address=127.0.0.1:{self.port}",
                "--enable-feature=exemplar-storage",
                "--log.level=warn",
            ]
        )
        listening(self.port, process=self.process, log=self.log)

    def get(self, path: str, **parameters: str) -> Any:
        """Data of an answer of its API. Raises HTTPError for what it refuses."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=20) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        try:
            return list(self.get("query", query=expression)["result"])
        except urllib.error.HTTPError as error:
            if error.code != 503:  # it is starting
                raise
            return []

    def value(self, expression: str) -> float:
        return sum(float(series["value"][1]) for series in self.query(expression))

    def rules(self) -> list[dict[str, Any]]:
        return [rule for group in self.get("rules")["groups"] for rule in group["rules"]]
