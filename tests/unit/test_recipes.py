"""HACKING's recipes hold: a probe's own file brings its table, a symptom's own file says who may explain it, and no
other file is touched.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

import agent
from agent.common.table import Tables
from agent.correlate.catalogue import causes, joined, symptoms
from agent.errors import AgentError
from agent.tables import TABLES
from agent.tables.brought import bring
from tests.unit.test_correlate_catalogue import SYMPTOM_FILE

PROBE_FILE = '''"""Widgets that are made."""

from agent.columns import i64
from agent.kernel.probe import Probe
from agent.tables.shared import INTERVAL, table

MADE = table(
    "widgets", "widgets made, by port", i64("sport", "local port"), INTERVAL, i64("count", "widgets"), measure="count"
)
PROBE = Probe("widgets", ())
'''
EXPLAINED = """

from agent.correlate.episode import Verdict


def asked(episode, view):
    yield Verdict("load", 0.9, "", render("there were {n}", n=value(episode.value, "connection")))


from dataclasses import replace
SYMPTOM = replace(SYMPTOM, explained_by={"load": asked, "disk": "blocked_time"})
"""
FOUND = """
import numpy as np
from agent.batch import make
from agent.correlate.correlator import Correlator
correlator = Correlator()
correlator.feed(make("tcp_close", 13, t_ns=10**12 + np.arange(13), pid=1, retransmits=3))
(row,) = [r for b in correlator.advance(10**12 + 9 * 10**9) if b.table == "finding" for r in b.rows if r["state"] == 1]
print(row["symptom"].decode(), row["cause"].decode(), sum(correlator.guard.counts.values()))
"""
STORED = """
import sys
from agent.tables import TABLES
assert not {"numpy", "bcc", "agent.probes"} & {*sys.modules}
import agent.probes
from agent.batch import make
from agent.store.hot import HotStore
assert agent.probes.discover()["widgets"] and agent.probes.widgets.MADE == TABLES["widgets"]
store = HotStore("store", "BOOT", "host-a", seal_command=())
store.append([make("widgets", 7, t_ns=5, sport=80, count=3)])
store.close()
"""
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy with both files in it."""
    top = tmp_path_factory.mktemp("tree")
    shutil.copytree(Path(agent.__file__).parent, top / "agent", ignore=shutil.ignore_patterns("__pycache__"))
    (top / "agent/probes/widgets.py").write_text(PROBE_FILE)
    (top / "agent/correlate/symptoms/closing_time.py").write_text(SYMPTOM_FILE + EXPLAINED)
    return top


@pytest.fixture
def run(tree: Path) -> Run:
    def program(*argv: str, **env: str) -> subprocess.CompletedProcess[str]:
        path = f"{tree}:{Path(agent.__file__).parents[1]}"
        return subprocess.run(
            [sys.executable, *argv],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": path, **env},
            capture_output=True,
            text=True,
            check=False,
        )

    return program


def test_the_table_of_a_probe_is_listed_completed_stored_sealed_and_queried(tree: Path, run: Run) -> None:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    stored = run("-c", STORED.replace("BOOT", boot))
    assert stored.returncode == 0, stored.stderr
    listed = [row["table"] for row in json.loads(run("-m", "agent", "tables", "-o", "json").stdout)["rows"]]
    assert listed == [*TABLES, "widgets"]
    words = {"_TICKSCOPE_COMPLETE": "bash_complete", "COMP_WORDS": "tickscope query wid", "COMP_CWORD": "2"}
    assert run("-m", "agent", **words).stdout.split() == ["plain,widgets"]
    query = ("-m", "agent", "query", "widgets", "--store", str(tree / "store"), "-o", "json")
    sealed = ("-m", "agent.store.seal", "--below", "2", "--max-bytes", "1e9", "--max-age-s", "1e12")
    for _ in ("hot", "sealed"):
        asked = run(*query, "--since", "boot+0")
        assert asked.returncode == 0, asked.stderr
        assert [(row["sport"], row["count"]) for row in json.loads(asked.stdout)["rows"]] == [(80, 3)] * 7
        done = subprocess.run(
            [sys.executable, *sealed],
            cwd=tree / "store",
            env={**os.environ, "PYTHONPATH": f"{tree}:{Path(agent.__file__).parents[1]}"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("output", "why"),
    [
        ('i64("count", NOWHERE)', "name 'NOWHERE' is not defined"),
        ('i64("count")', "missing 1 required positional argument"),
        ('i64("sport", "")', "there is another column sport"),
        ('open("/etc/passwd")', "name 'open' is not defined"),
    ],
)
def test_a_table_that_cannot_be_is_refused_with_its_file(tmp_path: Path, output: str, why: str) -> None:
    (tmp_path / "wrong.py").write_text(f'WRONG = table("wrong", "", i64("sport", ""), {output})\n')
    with pytest.raises(AgentError) as refused:
        bring(tmp_path, Tables([]))
    assert f"{tmp_path}/wrong.py: " in refused.value.what and why in refused.value.what and refused.value.remedy


def test_a_verb_reports_it_in_words(tree: Path, run: Run) -> None:
    file = tree / "agent/probes/wrong.py"
    file.write_text('WRONG = table("loss", "", i64("sport", ""))\n')
    asked = run("-m", "agent", "tables")
    file.unlink()
    assert asked.returncode == 1 and asked.stderr.startswith(f"tickscope: {file}: table loss: there is another one")
    assert "Traceback" not in asked.stderr


def test_a_symptom_that_reports_who_explains_it_is_explained(run: Run) -> None:
    found = run("-c", FOUND)
    assert found.stdout.split() == ["closing_time", "load", "0"], found.stderr
    listed = {row["symptom"]: row for row in json.loads(run("-m", "agent", "symptoms", "-o", "json").stdout)["rows"]}
    assert listed["closing_time"]["causes"] == "disk load"
    listed = {row["cause"]: row for row in json.loads(run("-m", "agent", "causes", "-o", "json").stdout)["rows"]}
    assert [name for name, row in listed.items() if "closing_time" in (row["explains"] or "")] == ["disk", "load"]


@pytest.mark.parametrize(
    ("explained_by", "why"),
    [
        ({"lod": "refusals"}, "symptom refusals: explained_by: there is no 'lod'"),
        ({"cpu": "queue_lag"}, "cause cpu lists it too"),
        ({"tls": "retry_storm"}, "tls as for: there is no 'retry_storm'"),
    ],
)
def test_names_that_there_are_not_are_refused(explained_by: Mapping[str, str], why: str) -> None:
    wrong = replace(symptoms()["refusals"], explained_by=explained_by)
    with pytest.raises(AgentError, match=why):
        joined({**symptoms(), "refusals": wrong}, causes())


def test_a_cause_of_no_symptom_is_refused() -> None:
    wrong = replace(causes()["cpu"], explains={"refusal": causes()["cpu"].explains["refusals"]})
    with pytest.raises(AgentError, match="cause cpu: explains: there is no 'refusal'"):
        joined(symptoms(), {"cpu": wrong})
