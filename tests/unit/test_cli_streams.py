"""What a verb does where its streams or its environment are not as usual."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.unit.test_query import make, write

ROOT = Path(__file__).resolve().parents[2]
VERBS = (
    ["tables"],
    ["symptoms"],
    ["causes", "tls"],
    ["query", "tcp_reset"],
    ["sql", "select 1"],
    ["findings"],
    ["explain"],
    ["limiters"],
    ["queues"],
    ["clock", "history"],
    ["status"],
    ["completion", "bash"],
    ["--help"],
)


@pytest.mark.parametrize("argv", VERBS, ids=" ".join)
def test_a_closed_output_and_a_reader_that_has_gone_are_borne_quietly(tmp_path: Path, argv: list[str]) -> None:
    write(tmp_path, make("tcp_reset", 3, t_ns=1))
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TICKSCOPE_STORE": str(tmp_path), "TICKSCOPE_RUN_DIR": str(tmp_path)}
    verb = [sys.executable, "-m", "agent", *argv]
    usual = subprocess.run(verb, env=env, capture_output=True, text=True)
    closed = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", *verb], env=env, stderr=subprocess.PIPE, text=True)
    assert closed.returncode == usual.returncode and "Traceback" not in closed.stderr
    silent = subprocess.run(["sh", "-c", 'exec "$@" >&- 2>&- <&-', "sh", *verb], env=env)
    assert silent.returncode == usual.returncode
    gone, ours = os.pipe()
    os.close(gone)
    done = subprocess.run(verb, env=env, stdout=ours, stderr=subprocess.PIPE, text=True)
    os.close(ours)
    assert "Traceback" not in done.stderr and "Broken" not in done.stderr
    assert done.returncode in ({0} if usual.stdout and argv != ["--help"] else {usual.returncode, 1})


def test_modules_of_the_same_names_on_pythonpath_are_not_taken(tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", symlinks=True)
    site = next((tmp_path / "venv" / "lib").glob("python3*/site-packages"))
    (site / "sources.pth").write_text(f"{ROOT}\n" + "\n".join(p for p in sys.path if p.endswith("site-packages")))
    shadows = tmp_path / "shadows"
    shadows.mkdir()
    for name in ("click", "numpy", "duckdb", "agent", "json", "signal"):
        (shadows / f"{name}.py").write_text("raise SystemExit('the wrong one')\n")
    write(tmp_path / "store", make("tcp_reset", 3, t_ns=1, pid=7))
    launcher = [str(tmp_path / "venv/bin/python"), str(ROOT / "agent/cli/tickscope")]
    done = subprocess.run(
        [*launcher, "query", "tcp_reset", "--columns", "pid", "-o", "csv", "--store", str(tmp_path / "store")],
        env={**os.environ, "PYTHONPATH": str(shadows), "PYTHONSAFEPATH": "1"},
        cwd=shadows,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "pid\n7\n7\n7\n"), done.stderr
