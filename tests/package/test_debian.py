"""The Debian package of each release, in a fresh root of it with systemd: from its installation to its purge."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.package.nspawn import Booted, make_root
from tests.patience import PATIENCE, until

TOP = Path(__file__).parents[2]
#: In the root: what the test itself runs. A Debian host has most of it.
_PACKAGES = "systemd,systemd-sysv,dbus,lintian,man-db,curl,openssl,procps,python3,redis-server"
#: Changed by apt, by systemd and by programs that run meanwhile.
_OTHERS = ("dev", "proc", "sys", "run", "tmp", "root", "var/lib/apt", "var/lib/dpkg", "var/cache", "var/log", "var/tmp")
_OTHERS += ("var/lib/redis", "var/lib/systemd/random-seed", "var/lib/systemd/timers", "var/lib/systemd/catalog")
#: A server in /home that is stopped for 3 s, and clients of TLS in a directory of /tmp that only they see.
_LOAD = """
mkdir -p /home/u /tmp/own
cp /usr/bin/openssl /home/u/openssl-home; cp /usr/bin/openssl /tmp/own/openssl-tmp
openssl req -x509 -newkey rsa:2048 -nodes -keyout /tmp/own/key -out /tmp/own/cert -days 2 -subj /CN=x 2>/dev/null
openssl s_server -accept 4433 -key /tmp/own/key -cert /tmp/own/cert -quiet >/dev/null 2>&1 & tls=$!
cd /home/u; python3 -m http.server 18099 --bind 127.0.0.1 >/dev/null 2>&1 & web=$!
sleep 1
while curl -s -m 10 -o /dev/null http://127.0.0.1:18099/; do sleep 0.1; done &
for i in 1 2 3 4 5; do
    for client in /home/u/openssl-home /tmp/own/openssl-tmp; do
        $client s_client -connect 127.0.0.1:4433 </dev/null >/dev/null 2>&1
    done
    sleep 1
done
sleep 30; kill -STOP $web; sleep 3; kill -CONT $web; sleep 6; kill $web $tls; wait
rm -r /home/u /tmp/own
"""


def build(suite: str, out: Path, **env: str) -> Path:
    out.mkdir(exist_ok=True)
    subprocess.run([TOP / "deploy/build-deb.sh", suite, out], check=True, env={**os.environ, **env})
    (package,) = out.glob("tickscope_*_amd64.deb")
    return package


def older(package: Path, work: Path) -> Path:
    """The same package as version 0.0.1, with another default file of settings."""
    subprocess.run(["dpkg-deb", "-R", package, work], check=True)
    control = work / "DEBIAN/control"
    control.write_text(re.sub(r"(?m)^Version: .*", "Version: 0.0.1", control.read_text()))
    with (work / "etc/tickscope/tickscope.yaml").open("a") as settings:
        settings.write("# of version 0.0.1\n")
    subprocess.run(["dpkg-deb", "-Znone", "-b", work, work.with_suffix(".deb")], check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(work)
    return work.with_suffix(".deb")


def files(root: Path) -> set[str]:
    """All paths of a root but those that others change, and the names of its users and groups."""
    found = set[str]()
    for folder, folders, names in os.walk(root):
        inner = os.path.relpath(folder, root)
        paths = {os.path.normpath(os.path.join(inner, name)) for name in [*folders, *names]}
        found |= {path for path in paths if path not in _OTHERS}
        folders[:] = [name for name in folders if os.path.normpath(os.path.join(inner, name)) not in _OTHERS]
    for name in ("passwd", "group", "shadow", "gshadow", "subuid"):
        if (root / "etc" / name).exists():
            found |= {f"{name}: {line.split(':')[0]}" for line in (root / "etc" / name).read_text().splitlines()}
    return found


@pytest.fixture(scope="module", params=("bookworm", "trixie"))
def suite(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def package(suite: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(suite, tmp_path_factory.mktemp(suite))


@pytest.fixture(scope="module")
def root(suite: str, package: Path) -> Iterator[Path]:
    """A root with what the package depends on, so that apt needs no network in it."""
    depends = subprocess.run(["dpkg-deb", "-f", package, "Depends"], check=True, capture_output=True, text=True).stdout
    made = package.parent / "root"
    try:
        make_root(
            suite, _PACKAGES, made, f'apt-get -qq satisfy -y --no-install-recommends "{depends.strip()}" >/dev/null'
        )
        shutil.copy(package, made / "root/tickscope.deb")
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def status(host: Booted) -> dict[str, object]:
    found: dict[str, object] = json.loads(host.run("tickscope status --wait 100s -o json"))
    return found


def states(host: Booted) -> dict[str, str]:
    """State -> probes with that state."""
    return {p["probe"]: p["state"] for p in json.loads(host.run("tickscope probes -o json"))["rows"]}


@pytest.mark.timeout(1800)
def test_lintian_has_no_errors(root: Path) -> None:
    done = subprocess.run(
        ["chroot", root, "lintian", "--allow-root", "/root/tickscope.deb"], capture_output=True, text=True, check=False
    )
    errors = re.findall(r"^E: .*", done.stdout, re.MULTILINE)
    assert (errors, done.stderr, done.returncode) == ([], "", 0)


@pytest.mark.timeout(1800)
def test_a_host_with_an_installation_by_run_sh_is_refused(root: Path) -> None:
    (root / "opt/tickscope/venv").mkdir(parents=True)
    try:
        command = ["chroot", root, "dpkg", "-i", "/root/tickscope.deb"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode != 0
        assert "/opt/tickscope/venv exists" in done.stderr
        assert not (root / "usr/lib/tickscope").exists()
    finally:
        shutil.rmtree(root / "opt/tickscope")
        subprocess.run(["chroot", root, "dpkg", "--purge", "tickscope"], check=False, capture_output=True)


@pytest.mark.timeout(1800)
def test_from_installation_to_purge(package: Path, root: Path) -> None:
    shutil.move(older(package, package.parent / "older"), root / "root/older.deb")
    with Booted(root) as host:
        before, began = files(root), time.monotonic()
        host.run("apt-get install -y /root/older.deb")
        here = time.monotonic() - began
        assert host.run("systemctl is-active tickscope; systemctl is-enabled tickscope").split() == [
            "active",
            "enabled",
        ]
        installed(host)
        newcomer(host, package.parent, here)
        observes(host)
        upgraded(host)
        assert host.run("dpkg --verify tickscope | grep -v ' c '", check=False) == ""
        host.run("apt-get remove -y tickscope")
        assert host.run("systemctl is-active tickscope", check=False).strip() == "inactive"
        assert host.run("ls /etc/tickscope /var/lib/tickscope | grep -c .") != "0\n"
        assert not (root / "usr/lib/tickscope").exists()
        host.run("apt-get purge -y tickscope")
        assert host.run("ls -d /run/tickscope* /tmp/systemd-private-*tickscope* 2>/dev/null", check=False) == ""
        assert host.run("systemctl status tickscope 2>&1", check=False).startswith(
            "Unit tickscope.service could not be"
        )
    assert files(root) - before == set()
    assert before - files(root) == set()
    assert not list((root / "var/cache").glob("tickscope*"))


def installed(host: Booted) -> None:
    assert {row["uid"] for row in status(host)["processes"]} == {int(host.run("id -u tickscope"))}
    assert set(states(host).values()) <= {"attached", "off"}
    assert host.run("stat -c '%U %G %a' /var/lib/tickscope") == "tickscope tickscope 750\n"
    exposure = host.run("systemd-analyze security tickscope --no-pager")
    stated = re.search(r"exposure level of ([\d.]+)", (TOP / "docs/security.md").read_text())
    assert stated and f"tickscope.service: {stated[1]} " in exposure
    for page in ("1 tickscope", "5 tickscope.yaml"):
        assert host.run(f"man --warnings {page} 2>&1 >/dev/null") == ""
    complete = "bash -c '. /usr/share/bash-completion/completions/tickscope; complete -p tickscope'"
    assert "_tickscope_completion" in host.run(complete)
    assert host.run(
        "bash -c 'COMP_WORDS=\"tickscope find\" COMP_CWORD=1 _TICKSCOPE_COMPLETE=bash_complete tickscope'"
    ) == ("plain,findings\n")
    assert host.run("tickscope config check").endswith("no errors, no warnings\n")
    alerts = "/usr/share/doc/tickscope/examples/alerts.yaml"
    for runbook in re.findall(r'"runbook_url": "file://([^"]+)"', host.run(f"cat {alerts}")):
        host.run(f"test -f {runbook}")
    defaults = host.run("tickscope config show notify.alertmanager.runbook_url")
    assert "file:///usr/lib/tickscope/docs/runbooks/" in defaults


def newcomer(host: Booted, folder: Path, here: float) -> None:
    """The first minutes: after the installation, which took ``here`` seconds, the demo beside the service, its finding,
    and the page in a browser. With TICKSCOPE_PICTURES set to a directory, the picture is kept there.
    """
    began = time.monotonic()
    host.run("tickscope demo --duration 45s >/root/demo.log 2>&1 &")
    until(lambda: "process_stopped" in host.run("tickscope findings -o json", check=False))
    found = time.monotonic() - began
    host.run("tickscope ui --duration 60s >/root/url 2>&1 &")
    until(lambda: "token=" in host.run("cat /root/url"))
    url, picture = host.run("cat /root/url").strip(), folder / "ui.png"
    enter = ["nsenter", "-t", str(host.pid), "-n", sys.executable, "-m", "tests.package.page_picture", url, picture]
    subprocess.run(enter, check=True, cwd=TOP)
    seen = time.monotonic() - began
    print(f"installation {here:.0f} s, demo to finding {found:.0f} s, to its picture {seen:.0f} s")
    assert here + seen < 300 * PATIENCE
    if kept := os.environ.get("TICKSCOPE_PICTURES"):
        shutil.copy(picture, kept)
    assert "observes the workload" in host.run("cat /root/demo.log")
    until(lambda: host.run("pgrep -f 'tickscope (demo|ui)'", check=False) == "")
    host.run("rm /root/demo.log /root/url")


def observes(host: Booted) -> None:
    """Programs in directories that the unit hides are observed, also with hidepid=; a reload changes no owner."""
    host.run("mount -o remount,hidepid=invisible /proc; systemctl restart tickscope")
    host.run(_LOAD)
    rows = json.loads(host.run("tickscope query tls_handshake --where \"role = 'client'\" -o json"))["rows"]
    assert {row["comm"] for row in rows} >= {"openssl-home", "openssl-tmp"}
    findings = json.loads(host.run("tickscope findings -o json"))["rows"]
    assert "process_stopped" in {one["cause"] for one in findings}
    owners = "stat -c '%n %U %a' /run/tickscope /run/tickscope/*"
    own = host.run(owners)
    host.run("systemctl reload tickscope")
    until(lambda: "read /etc/tickscope/tickscope.yaml again" in host.run("journalctl -u tickscope -o cat"))
    assert host.run(owners) == own
    assert not set(status(host)["loss"]), "lost"
    host.run("mount -o remount,hidepid=off /proc")


def upgraded(host: Booted) -> None:
    """Settings and store stay, and the new version runs."""
    host.run("sed -i 's/^#slow_syscall_ms: 10/slow_syscall_ms: 20/' /etc/tickscope/tickscope.yaml")
    earlier = host.run("tickscope findings -o json")
    host.run("apt-get install -y -o Dpkg::Options::=--force-confold /root/tickscope.deb")
    assert "slow_syscall_ms: 20" in host.run("cat /etc/tickscope/tickscope.yaml")
    assert set(states(host).values()) <= {"attached", "off"}
    before, after = (
        {row["finding_id"] for row in json.loads(one)["rows"]}
        for one in (earlier, host.run("tickscope findings -o json"))
    )
    assert before and before <= after
    assert "0.0.1" not in host.run("dpkg-query -W tickscope")


@pytest.mark.timeout(1800)
def test_two_builds_are_equal(tmp_path: Path) -> None:
    first = build("bookworm", tmp_path / "1")
    subprocess.run(["dpkg-deb", "-x", first, tmp_path / "x"], check=True)
    second = build(
        "bookworm", tmp_path / "2", PIP_CONSTRAINT=str(tmp_path / "x/usr/share/doc/tickscope/requirements.txt")
    )
    one, two = (hashlib.sha256(path.read_bytes()).hexdigest() for path in (first, second))
    assert one == two
