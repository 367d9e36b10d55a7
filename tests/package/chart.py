"""The Helm chart: what it renders by a Helm that is built once from the module proxy, and its lists."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kernel.go_fixture import go_minor, go_of
from tests.releases import CACHE

CHART = Path(__file__).parents[2] / "deploy/helm/tickscope"
HELM, OPERATOR = "v3.22.0", "v0.85.0"
Object = dict[str, Any]


def capabilities() -> list[str]:
    """Those of every kernel; the template ``tickscope.capabilities.bpf`` has the others."""
    added = (CHART / "templates/daemonset.yaml").read_text().partition(" add:\n")[2].partition("seccompProfile:")[0]
    return re.findall(r"- ([A-Z_]+)$", added, re.MULTILINE)


def _go(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """By this host's Go, or one that is new enough for Helm."""
    go = "go" if go_minor() >= 26 else go_of("go1.26.8")
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "", **env}
    return subprocess.run([go, *arguments], cwd="/", env=environment, capture_output=True, text=True)


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = CACHE / f"helm-{HELM}/helm"
    if not program.exists():
        done = _go("install", f"helm.sh/helm/v3/cmd/helm@{HELM}", GOBIN=str(program.parent))
        if done.returncode:
            pytest.skip(f"cannot build Helm: {done.stderr[-300:]}")
    environment = {**os.environ, "HELM_CACHE_HOME": "/nonexistent", "HELM_CONFIG_HOME": "/nonexistent"}
    return subprocess.run([program, *arguments], env=environment, capture_output=True, text=True)


def flags(values: Object) -> list[str]:
    return [word for name, value in values.items() for word in ("--set-json", f"{name}={json.dumps(value)}")]


def render(values: Object, kubernetes: str = "1.37.0") -> list[Object]:
    """The objects of a release ``tickscope`` in a namespace of that name."""
    command = ["template", "tickscope", str(CHART), "--namespace", "tickscope", "--kube-version", kubernetes]
    done = helm(*command, *flags(values))
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def of_kind(objects: list[Object], kind: str) -> Object:
    (found,) = (one for one in objects if one["kind"] == kind)
    return found


def operator_schema(kind: str) -> Object:
    """JSON Schema of a resource of the Prometheus Operator, from its release; unknown fields are errors."""
    module = f"github.com/prometheus-operator/prometheus-operator@{OPERATOR}"
    done = _go("mod", "download", "-json", module)
    reported = json.loads(done.stdout or "{}")
    if "Dir" not in reported:
        pytest.skip(f"cannot get {module}: {reported.get('Error') or done.stderr[-300:]}")
    folder = Path(reported["Dir"], "example/prometheus-operator-crd")
    definition = yaml.safe_load((folder / f"monitoring.coreos.com_{kind.lower()}s.yaml").read_text())
    (version,) = (one for one in definition["spec"]["versions"] if one["name"] == "v1")
    return _strict(version["schema"]["openAPIV3Schema"])


def _strict(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {name: _strict(value) for name, value in schema.items()}
    if isinstance(pattern := inner.get("pattern"), str) and "(?i)" in pattern:  # Python has it at the beginning only
        inner["pattern"] = "(?i)" + pattern.replace("(?i)", "")
    # An object's metadata has no fields here: they are Kubernetes' own.
    return {"additionalProperties": False, **inner} if "properties" in schema and "type" in schema else inner
