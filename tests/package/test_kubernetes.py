"""The Helm chart, linted and checked by the schemas of its objects; and its pod, with the image, as a kubelet has it.

A real containerd makes the pods. What is not here: a kubelet and an API server, other runtimes, AppArmor and SELinux.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from agent.common.runtimes import RUNTIME_FILES
from agent.config_check import ERROR, check
from tests.package import image
from tests.package.chart import CHART, Object, flags, helm, of_kind, operator_schema, render
from tests.package.kubelet import Kubelet
from tests.patience import PATIENCE, until
from tests.ports import free_ports
from tests.servers.containerd import Containerd, pid_in

SYS_ADMIN = 1 << 21
OPERATOR_KINDS = ("ServiceMonitor", "PrometheusRule")
VALUES: dict[str, Object] = {
    "default": {},
    "newest kernel": {"kernel": "7.2", "runtime": "crio"},
    "all": {
        "image": {"repository": "registry.example.org/tickscope", "tag": "x", "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "registry"}],
        "settings": {
            "max_bytes": 4_000_000_000,
            "redis": [{"url": "redis://redis:6379/0", "password_variable": "TICKSCOPE_REDIS_PASSWORD"}],
            "notify": {"link": "https://grafana.example.org/d/tickscope?var-instance={host}"},
        },
        "env": [
            {"name": "TICKSCOPE_REDIS_PASSWORD", "valueFrom": {"secretKeyRef": {"name": "tickscope", "key": "redis"}}}
        ],
        "nodeSelector": {"pool": "shop"},
        "tolerations": [{"key": "shop", "operator": "Exists", "effect": "NoSchedule"}],
        "priorityClassName": "system-node-critical",
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}, "interval": "15s"},
        "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}, "docs": "https://wiki.example.org/t"},
    },
}


@pytest.mark.timeout(1800)  # the first test builds Helm
@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_helm_finds_nothing_wrong(values: Object) -> None:
    done = helm("lint", "--strict", "--quiet", str(CHART), *flags(values))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("version", ["1.30.0", "1.37.0"])
@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_the_objects_are_what_kubernetes_takes(values: Object, version: str) -> None:
    """Unknown fields are errors."""
    objects = render(values, version)
    assert {one["kind"] for one in objects} >= {"DaemonSet", "ConfigMap", "ServiceAccount"}
    assert not {one["kind"] for one in objects} & {"Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"}
    for one in objects:
        if one["kind"] in OPERATOR_KINDS:
            jsonschema.validate(one, operator_schema(one["kind"]))
        else:
            kubernetes_validate.validate(one, version.rpartition(".")[0], strict=True)


def test_the_validators_find_a_wrong_field() -> None:
    daemon_set = of_kind(render({}), "DaemonSet")
    daemon_set["spec"]["template"]["spec"]["hostPid"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(daemon_set, "1.37", strict=True)
    monitor = of_kind(render(VALUES["all"]), "ServiceMonitor")
    monitor["spec"]["endpoints"][0]["relabeling"] = []
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(monitor, operator_schema("ServiceMonitor"))


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"settings": {"syscals": "full"}}, "syscals"),
        ({"settings": {"poll_s": 0}}, "poll_s"),
        ({"kernel": 6.1}, "kernel"),
        ({"runtime": "rkt"}, "runtime"),
        ({"serviceMonitors": {"enabled": True}}, "serviceMonitors"),
        ({"settings": {"prometheus": "127.0.0.1:9469"}, "serviceMonitor": {"enabled": True}}, "cannot reach"),
    ],
)
def test_wrong_values_are_refused(values: Object, named: str) -> None:
    done = helm("template", "tickscope", str(CHART), "--kube-version", "1.37.0", *flags(values))
    assert done.returncode != 0
    assert named in done.stderr


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_the_settings_are_what_the_agent_takes(tmp_path: Path, values: Object) -> None:
    file = tmp_path / "tickscope.yaml"
    file.write_text(of_kind(render(values), "ConfigMap")["data"]["tickscope.yaml"])
    found = check(file, True, {"TICKSCOPE_REDIS_PASSWORD": "x"})
    assert [one for one in found if one.severity == ERROR] == []
    given = yaml.safe_load(file.read_text())
    page = {"prometheus": "0.0.0.0:9469"} if values.get("serviceMonitor") else {}
    assert given == {**page, **values.get("settings", {})}


def test_the_rules_are_those_of_the_dashboards(tmp_path: Path) -> None:
    spec = of_kind(render(VALUES["all"]), "PrometheusRule")["spec"]
    wanted = [yaml.safe_load((CHART / "files" / name).read_text()) for name in ("rules.yaml", "alerts.yaml")]
    text = json.dumps([group for one in wanted for group in one["groups"]])
    assert spec["groups"] == json.loads(text.replace("file:///opt/tickscope/docs", "https://wiki.example.org/t"))
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump(spec))
    done = subprocess.run(["promtool", "check", "rules", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("kernel", "more"),
    [
        ("5.8", "SYS_ADMIN SYS_RESOURCE"),
        ("5.10", "SYS_ADMIN SYS_RESOURCE"),
        ("5.11", "SYS_ADMIN"),
        ("6.1", "SYS_ADMIN"),
        ("6.6", ""),
        ("6.12", ""),
        ("7.2", ""),
    ],
)
def test_capabilities_are_by_kernel(kernel: str, more: str) -> None:
    (container,) = of_kind(render({"kernel": kernel}), "DaemonSet")["spec"]["template"]["spec"]["containers"]
    context = container["securityContext"]
    usual = {"BPF", "PERFMON", "SYSLOG", "SYS_NICE", "SETUID", "SETGID", "SETPCAP", "CHOWN", "FOWNER"}
    usual |= {"SYS_PTRACE", "DAC_READ_SEARCH", "CHECKPOINT_RESTORE"}
    assert sorted(context["capabilities"]["add"]) == sorted(usual | set(more.split()))
    assert (context["capabilities"]["drop"], context.get("privileged")) == (["ALL"], None)


@pytest.mark.parametrize("runtime", ["containerd", "k3s", "microk8s", "crio", "docker"])
def test_the_files_of_the_runtime_are_where_the_agent_looks(runtime: str) -> None:
    spec = of_kind(render({"runtime": runtime}), "DaemonSet")["spec"]["template"]["spec"]
    (volume,) = (one for one in spec["volumes"] if one["name"] == "containers")
    (mount,) = (one for one in spec["containers"][0]["volumeMounts"] if one["name"] == "containers")
    assert mount["mountPath"] == volume["hostPath"]["path"]
    kinds = {one.folder: one.kind for one in RUNTIME_FILES}
    assert kinds[mount["mountPath"]] == (runtime if runtime in ("crio", "docker") else "containerd")


@pytest.fixture(scope="module")
def containerd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containerd]:
    """It has the image. Its mounts are shared, as on a node with systemd."""
    directory = tmp_path_factory.mktemp("node")
    subprocess.run(["mount", "--bind", directory, directory], check=True)
    try:
        subprocess.run(["mount", "--make-rshared", directory], check=True)
        with Containerd(directory, {}) as one:
            one.load(image.build(directory / "build"))
            yield one
    finally:
        subprocess.run(["umount", "-R", "-l", directory], check=True)


@contextlib.contextmanager
def requests(port: int) -> Iterator[None]:
    """Ten a second."""
    ended = threading.Event()

    def ask() -> None:
        while not ended.wait(0.1):
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10) as page:
                page.read()

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield
    finally:
        ended.set()
        asking.join()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kernel", ["6.6", "5.11"])
def test_a_stall_in_another_pod_is_found(containerd: Containerd, tmp_path: Path, kernel: str) -> None:
    page, port = free_ports(2)
    objects = render(
        {
            "image": {"repository": image.REPOSITORY, "tag": image.TAG},
            "kernel": kernel,
            "settings": {"prometheus": f"127.0.0.1:{page}"},
        }
    )
    spec = of_kind(objects, "DaemonSet")["spec"]["template"]["spec"]
    tasks = "/run/containerd/io.containerd.runtime.v2.task/k8s.io"
    containerd.tasks.mkdir(parents=True, exist_ok=True)  # a node's first pod made it
    kubelet = Kubelet(containerd, "node-7", tmp_path, {tasks: str(containerd.tasks)})
    name = f"tickscope-{kernel}"
    agent = kubelet.run("tickscope", name, spec, of_kind(objects, "ConfigMap"))
    try:
        probe = spec["containers"][0]["startupProbe"]["exec"]["command"]
        until(lambda: containerd.execute(agent, *probe).returncode == 0, 180, 1, why=lambda: kubelet.log(name))
        as_promised(answer(containerd, agent, "status"), kernel)
        server = ["/usr/bin/python3", "-m", "http.server", str(port), "--bind", "127.0.0.1"]
        shop = {"name": "api", "image": f"{image.REPOSITORY}:{image.TAG}", "command": server}
        pid = pid_in(kubelet.run("shop", f"api-{kernel}", {"hostNetwork": True, "containers": [shop]}))
        with requests(port):
            time.sleep(30 * PATIENCE)  # as long as it takes to know what is usual
            os.kill(pid, signal.SIGSTOP)
            time.sleep(3)
            os.kill(pid, signal.SIGCONT)
            found = until(lambda: stopped(containerd, agent, f"api-{kernel}"), 60, 1, why=lambda: kubelet.log(name))
        assert (found["namespace"], found["container_name"]) == ("shop", "api")
        assert (found["image"], found["culprit_pod"]) == (f"{image.REPOSITORY}:{image.TAG}", f"api-{kernel}")
        rows = answer(containerd, agent, "query", "container", "--where", f"pod = 'api-{kernel}'")["rows"]
        assert {(row["node"], row["host"]) for row in rows} == {("node-7", "node-7")}
        with urllib.request.urlopen(f"http://127.0.0.1:{page}/metrics") as metrics:
            assert 'host_name="node-7"' in metrics.read().decode()
        assert answer(containerd, agent, "status")["loss"] == []
    finally:
        containerd.stop(agent)
    assert "Traceback" not in kubelet.log(name)


def answer(containerd: Containerd, agent: str, *command: str) -> Any:
    done = containerd.execute(agent, "tickscope", *command, "-o", "json")
    assert done.returncode in (0, 3), done.stderr
    return json.loads(done.stdout or '{"rows": []}')


def as_promised(status: Any, kernel: str) -> None:
    assert {p["probe"]: p["reason"] for p in status["probes"] if p["state"] not in ("attached", "off")} == {}
    assert status["helper"] == "running"
    # With this cgroup controller, of version 1, a pod has no right to real-time priority.
    how = " without real-time priority" if Path("/sys/fs/cgroup/cpu/cpu.rt_runtime_us").exists() else ""
    assert status["clock"]["watch"].partition(" (")[0] == f"running{how}"
    assert {p["uid"] for p in status["processes"]} == {60946}
    held = {p["role"]: int(p["cap_eff"], 16) for p in status["processes"]}
    assert not any(mask & SYS_ADMIN for mask in held.values())
    assert [role for role, mask in held.items() if mask] == ["helper"]


def stopped(containerd: Containerd, agent: str, pod: str) -> Any:
    """The finding about a process that was stopped in the pod; None while there is none."""
    rows = answer(containerd, agent, "findings")["rows"]
    return next((row for row in rows if row["cause"] == "process_stopped" and row["pod"] == pod), None)
