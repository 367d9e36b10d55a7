"""A containerd of a test's own (Debian's), with pods made by CRI as a kubelet makes them, on the host's network."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import io
import json
import os
import subprocess
import tarfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent.service.place import cgroups_of, container_of
from tests.patience import until
from tests.releases import unpacked
from tests.servers.process import ServerProcess

CONFIG = """
version = 2
root = "{0}/root"
state = "{0}/state"
[grpc]
  address = "{0}/socket"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
"""
PAUSE = "#include <unistd.h>\nint main(void) { for (;;) pause(); }\n"

Message = Sequence[tuple[int, Any]]


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def encoded(message: Message) -> bytes:
    """A protobuf message of (number of a field, value): a text, a number or a message."""
    out = bytearray()
    for number, value in message:
        if isinstance(value, int):
            out += _varint(number << 3) + _varint(value)
        else:
            data = value.encode() if isinstance(value, str) else encoded(value)
            out += _varint(number << 3 | 2) + _varint(len(data)) + data
    return bytes(out)


def pid_in(container_id: str) -> int:
    """Its process, by the same line that the agent reads."""
    for entry in Path("/proc").glob("[0-9]*/cgroup"):
        with contextlib.suppress(OSError):  # it has ended
            if container_of(cgroups_of(entry.read_bytes()))[0].decode() == container_id:
                return int(entry.parent.name)
    raise AssertionError(f"no process in {container_id}")


class Containerd(ServerProcess):
    """forged: annotations of each pod and container, as their author may set them."""

    def __init__(self, directory: Path, forged: dict[str, str]) -> None:
        root = unpacked("containerd-bookworm", "bookworm", ("containerd", "runc"))
        places = ":".join(str(root / place) for place in ("usr/bin", "usr/sbin"))
        self.directory, self._env = directory, {**os.environ, "PATH": f"{places}:{os.environ['PATH']}"}
        self._forged = [((1, key), (2, value)) for key, value in forged.items()]
        self.tasks = directory / "state/io.containerd.runtime.v2.task/k8s.io"
        self._pods, self._parents = list[str](), set[str]()
        (directory / "config.toml").write_text(CONFIG.format(directory))
        self.run(["containerd", "-c", str(directory / "config.toml")], env=self._env)
        until(lambda: self._ctr("version").returncode == 0, 20)
        for image, more in (("localhost/pause:1", {}), ("localhost/shop:1.4", forged)):
            self.load(self._image(image, more))

    def load(self, archive: Path) -> None:
        """Takes an image, as Docker saves it."""
        self._ctr("-n", "k8s.io", "images", "import", "--snapshotter", "native", str(archive), check=True)

    def end(self) -> None:
        for pod in self._pods:
            for call in ("StopPodSandbox", "RemovePodSandbox"):
                self._call(call, [(1, pod)])
        super().end()
        for parent in self._parents:
            for made in (parent, os.path.dirname(parent)):
                for directory in (f"/sys/fs/cgroup{made}", *glob.glob(f"/sys/fs/cgroup/*{made}")):
                    with contextlib.suppress(OSError):
                        os.rmdir(directory)

    def pod(self, namespace: str, name: str, container: str, parent: str) -> tuple[str, str]:
        """Starts a pod with one container; the ids of both. parent: the cgroup of the pod."""
        security = [(1, [(1, 2)])]  # the network of the node
        pod = [
            (1, [(1, name), (2, f"uid-of-{name}"), (3, namespace)]),
            (3, str(self.directory / "logs")),
            *((7, one) for one in self._forged),
            (8, [(1, parent), (2, security)]),
        ]
        annotations = [(10, one) for one in self._forged]
        config = [(1, [(1, container)]), (2, [(1, "localhost/shop:1.4")]), (3, "/pause"), *annotations, (11, "log")]
        return self.start(pod, config, parent)

    def start(self, pod: Message, container: Message, parent: str) -> tuple[str, str]:
        """As ``pod``, from CRI's PodSandboxConfig and ContainerConfig (runtime/v1/api.proto)."""
        sandbox = self._call("RunPodSandbox", [(1, pod)])
        self._pods.append(sandbox)
        self._parents.add(parent)
        made = self._call("CreateContainer", [(1, sandbox), (2, container), (3, pod)])
        self._call("StartContainer", [(1, made)])
        return sandbox, made

    def execute(self, container: str, *command: str) -> subprocess.CompletedProcess[bytes]:
        """Runs a command in a container, as a kubelet's probe or kubectl exec does it."""
        own = ("--exec-id", uuid.uuid4().hex, "--fifo-dir", str(self.directory / "fifo"))
        return self._ctr("-n", "k8s.io", "tasks", "exec", *own, container, *command)

    def stop(self, container: str) -> None:
        """SIGTERM; SIGKILL after 30 s."""
        self._call("StopContainer", [(1, container), (2, 30)])

    def _call(self, name: str, message: Message) -> str:
        """The first field of the answer: an id, or nothing."""
        import grpc

        with grpc.insecure_channel(f"unix://{self.directory}/socket") as channel:
            answer: bytes = channel.unary_unary(f"/runtime.v1.RuntimeService/{name}")(encoded(message), timeout=90)
        return answer[2:66].decode()

    def _ctr(self, *arguments: str, check: bool = False) -> subprocess.CompletedProcess[bytes]:
        command = ["ctr", "-a", f"{self.directory}/socket", *arguments]
        return subprocess.run(command, env=self._env, capture_output=True, check=check)

    def _image(self, name: str, labels: dict[str, str]) -> Path:
        """An image from scratch with one program, which sleeps."""
        program, out = self.directory / "pause", self.directory / "image.tar"
        if not program.exists():
            command = ["cc", "-static", "-o", str(program), "-x", "c", "-"]
            subprocess.run(command, input=PAUSE.encode(), check=True)
        layer = io.BytesIO()
        with tarfile.open(fileobj=layer, mode="w") as tar:
            tar.add(program, "pause")
        of_layer = hashlib.sha256(layer.getvalue()).hexdigest()
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": ["/pause"], "Labels": labels},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{of_layer}"]},
        }
        manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
        with tarfile.open(out, "w") as tar:
            for file, data in (
                ("config.json", json.dumps(config).encode()),
                ("layer.tar", layer.getvalue()),
                ("manifest.json", json.dumps(manifest).encode()),
            ):
                info = tarfile.TarInfo(file)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        return out
