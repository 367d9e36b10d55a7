"""The image of deploy/image/Dockerfile, built by buildah on a Debian that mmdebstrap makes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.releases import archive

TOP = Path(__file__).parents[2]
REPOSITORY, TAG = "localhost/tickscope", "test"
BASE = "localhost/debian:trixie"


def build(work: Path) -> Path:
    """The image as an archive of Docker's. work: a directory with room for 4 GB."""
    base, out = work / "base", work / "image.tar"
    base.mkdir(parents=True)
    settings = {name[4:].lower().replace("_", "-"): value for name, value in os.environ.items() if name[:4] == "PIP_"}
    settings.pop("find-links", None)  # of this host
    (base / "pip.conf").write_text("\n".join(["[global]", *(f"{name} = {value}" for name, value in settings.items())]))
    hooks = ("copy-in /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs", f"upload {base}/pip.conf /etc/pip.conf")
    options = ["--quiet", "--variant=apt", "--skip=output/dev", "--include=ca-certificates"]
    options += [f"--customize-hook={one}" for one in hooks]
    subprocess.run(["mmdebstrap", *options, "trixie", base / "root.tar", archive()], check=True)
    (base / "Dockerfile").write_text("FROM scratch\nADD root.tar /\n")
    store = ["buildah", "--root", f"{work}/storage", "--runroot", f"{work}/runroot", "--storage-driver", "vfs"]
    recipe = ["-f", str(TOP / "deploy/image/Dockerfile"), "--build-arg", f"BASE={BASE}", "--isolation", "chroot"]
    name = f"{REPOSITORY}:{TAG}"
    for command in (
        ["bud", "-t", BASE, str(base)],
        ["bud", "--pull-never", *recipe, "-t", name, str(TOP)],
        ["push", name, f"docker-archive:{out}:{name}"],
    ):
        done = subprocess.run([*store, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, done.stdout[-4000:]
    return out
