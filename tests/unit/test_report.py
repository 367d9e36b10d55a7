"""``tickscope report``: a finding, or a time, as one file, from a store with a kept recording."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from agent.batch import make
from agent.cli.main import cli
from agent.cli.report_read import ReportSpan, bounds
from agent.common.host import boot_id as this_boot
from agent.store.hot import HotStore
from agent.store.sources import opened
from tests.replayed import filled

#: A consumer rejects a message again and again; a step of the wall clock by 5.69 s back.
POISON, STEP = "4036-6", "0020-0"


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {name: tmp_path_factory.mktemp("report") / "store" for name in (POISON, STEP)}
    for name, path in made.items():
        filled(path, name)
    return made


def run(*args: str) -> Result:
    return CliRunner().invoke(cli, ["report", *args], catch_exceptions=True)


def document(path: Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="document">(.*?)</script>', path.read_text(), re.DOTALL)
    assert found is not None
    made: dict[str, Any] = json.loads(found[1])
    return made


def test_a_finding_with_the_rows_behind_its_evidence(stores: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "incident.html"
    done = run("-o", str(out), "--store", str(stores[POISON]))
    assert done.exit_code == 0, done.output
    made = document(out)
    (finding,) = made["findings"]
    assert made["chosen"] == finding["id"]
    assert (finding["cause"], finding["symptom"]) == ("poison_message", "redelivery")
    assert "refunds" in finding["sentence"]
    assert re.fullmatch(r"2026-11-20T\d\d:\d\d:\d\d\.\d{3}Z", finding["began"])
    (drawn,) = finding["panels"]
    (curve,) = drawn["curves"]
    inside = slice(int(finding["start"] / drawn["step"]) + 1, int(finding["end"] / drawn["step"]))
    assert max(value for value in curve["values"][inside] if value is not None) >= 1
    assert not any(curve["values"][: int(finding["start"] / drawn["step"]) - 1])
    assert curve["usual"] == 0
    assert [one["panel"] for one in finding["evidence"] if one["role"] == "timeline"] == [0]


def test_panels_agree_with_the_rows(stores: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "time.html"
    assert run("--since", "boot+0", "-o", str(out), "--store", str(stores[POISON])).exit_code == 0
    made = document(out)
    first, last = made["from_boot_s"], made["from_boot_s"] + made["length_s"]
    within = f"t_ns >= {first * 1e9:.0f} AND t_ns <= {last * 1e9:.0f}"
    sql = (
        f"SELECT limiter_id, count(*) AS n, max(duration_ns) AS longest FROM limiter_decision WHERE {within} GROUP BY 1"
    )
    asked = CliRunner().invoke(cli, ["sql", sql, "-o", "json", "--store", str(stores[POISON])])
    truth = {row["limiter_id"]: row for row in json.loads(asked.stdout)["rows"]}
    panels = {panel["title"]: panel for panel in made["panels"]}
    decided = {title.partition(": ")[2]: panel for title, panel in panels.items() if title.startswith("Decisions: ")}
    assert len(decided) == 4  # of more limiters, those with the most decisions
    for limiter, panel in decided.items():
        counted = sum(v * panel["step"] for curve in panel["curves"] for v in curve["values"] if v is not None)
        assert counted == pytest.approx(truth[limiter]["n"], rel=1e-4)
    for curve in panels["Duration of decisions"]["curves"]:
        longest = max(value for value in curve["values"] if value is not None)
        assert longest == pytest.approx(truth[curve["name"]]["longest"], rel=1e-5)


def test_a_curve_does_not_fold_over_a_clock_step(stores: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "step.html"
    assert run("--since", "boot+0", "-o", str(out), "--store", str(stores[STEP])).exit_code == 0
    made = document(out)
    (jump,) = made["jumps"]
    assert jump["size_ns"] == pytest.approx(-5.691e9, rel=1e-3)
    assert "lab-clock" in jump["by"]
    clock = made["panels"][0]
    assert clock["times"] == sorted(clock["times"])
    (curve,) = clock["curves"]
    assert curve["values"][0] == 0 and curve["values"][-1] == pytest.approx(-5.691e9, rel=1e-3)
    walls = [wall for _, wall in made["wall"]]
    assert min(np.diff(walls)) == pytest.approx(-5.691, abs=0.001)


def test_commands_of_a_time_in_which_the_wall_clock_went_back_find_its_rows(
    stores: dict[str, Path], tmp_path: Path
) -> None:
    out = tmp_path / "step.html"
    store = str(stores[STEP])
    assert run("--since", "boot+0", "-o", str(out), "--store", store).exit_code == 0
    made = document(out)
    (jump,) = made["jumps"]
    at_ns = int((made["from_boot_s"] + jump["t"]) * 1e9)
    with opened(store, ["clock_offset", "clock_change"], None, None) as source:
        its = bounds(source, ReportSpan(made["boot_id"], at_ns - 2_000_000_000, at_ns + 1_000_000_000))
    assert "boot+" in its
    asked = CliRunner().invoke(cli, ["query", "clock_change", *its.split(), "-o", "json", "--store", store])
    assert asked.exit_code == 0, asked.output
    assert len(json.loads(asked.stdout)["rows"]) >= 1


def test_a_curve_has_the_smallest_and_the_largest_value_of_each_interval(
    stores: dict[str, Path], tmp_path: Path
) -> None:
    out = tmp_path / "time.html"
    store = str(stores[POISON])
    assert run("--since", "boot+0", "-o", str(out), "--store", store).exit_code == 0
    panel = next(panel for panel in document(out)["panels"] if panel["table"] == "tcp_rtt")
    asked = CliRunner().invoke(
        cli, [*shlex.split(panel["command"])[1:], "-o", "json", "--limit", "0", "--store", store]
    )
    rows = json.loads(asked.stdout)["rows"]
    for curve in panel["curves"]:
        mine = [row for row in rows if curve["name"] in (row["peer"], f"clients of port {row['sport']}")]
        for low, high in zip(curve["least"], curve["values"], strict=True):
            assert (low is None and high is None) or low <= high
        assert min(low for low in curve["least"] if low is not None) == min(
            row["rtt_min_us"] for row in mine if row["rtt_min_us"] is not None
        )


def test_the_file_loads_nothing(stores: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "file.html"
    run("last", "-o", str(out), "--store", str(stores[POISON]))
    text = out.read_text()
    assert "default-src 'none'" in text
    assert not re.findall(r"""(?:src|href)\s*=\s*["']""", re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL))


HOSTILE = "</script><img src=x onerror=alert(1)>\x1b[31m\u202eevil & \u2028"


def test_names_of_programs_stay_text(tmp_path: Path) -> None:
    store = HotStore(tmp_path / "store", this_boot(), HOSTILE, seal_command=())
    row = {"t_ns": np.arange(3) * 10**9, "pid": 7, "limiter_id": HOSTILE.encode(), "result": 1, "duration_ns": 5}
    store.append([make("limiter_decision", 3, **row)])
    store.close()
    out = tmp_path / "hostile.html"
    done = run("--since", "boot+0", "-o", str(out), "--store", str(tmp_path / "store"))
    assert done.exit_code == 0, done.output
    text = out.read_text()
    assert "<img" not in text
    assert "\x1b" not in text and "\u202e" not in text
    assert "evil" in json.dumps(document(out)["panels"])


def test_the_busiest_subjects_are_shown_and_the_others_counted(tmp_path: Path) -> None:
    """Eight limiters with 10 to 80 decisions."""
    hot, took = HotStore(tmp_path / "store", this_boot(), "host", seal_command=()), (1, 2, 3, 4, 9, 5, 6, 8)
    for i, seconds in enumerate(took):
        rows = {"t_ns": np.arange(10 * i + 10) * 10**9 // 10, "duration_ns": seconds * 10**9}
        hot.append([make("limiter_decision", 10 * i + 10, **rows, limiter_id=b"limit%d" % i, result=0)])
    hot.close()
    done = run("--since", "boot+0", "-o", str(tmp_path / "x.html"), "--store", str(tmp_path / "store"))
    assert done.exit_code == 0, done.output
    panels = document(tmp_path / "x.html")["panels"]
    assert [one["title"] for one in panels if one["kind"] == "Decisions"] == [
        f"Decisions: limit{i}" for i in (7, 6, 5, 4)
    ]
    (lasted,) = (one for one in panels if one["kind"] == "Duration of decisions")
    assert [curve["name"] for curve in lasted["curves"]] == [f"limit{i}" for i in (4, 7, 6, 5, 3, 2)]
    assert lasted["more"] == 2


def test_a_subject_without_a_known_value_has_no_panel(tmp_path: Path) -> None:
    """An empty panel would end the script of the page."""
    store = HotStore(tmp_path / "store", this_boot(), "host", seal_command=())
    for name, result in ((b"known", {"result": 1}), (b"unknown", {})):
        store.append([make("limiter_decision", 3, t_ns=np.arange(3) * 10**9, pid=7, limiter_id=name, **result)])
    store.close()
    out = tmp_path / "report.html"
    assert run("--since", "boot+0", "-o", str(out), "--store", str(tmp_path / "store")).exit_code == 0
    assert "Decisions: known" in {panel["title"] for panel in document(out)["panels"]}
    assert all(panel["curves"] for panel in document(out)["panels"])


@pytest.mark.parametrize(
    ("args", "status", "words"),
    [
        (("last", "--since", "1h"), 2, "not both"),
        (("--until", "1h"), 2, "--until needs --since"),
        (("zzz",), 2, "no finding has the id"),
        (("ffffffff",), 3, "no finding's id starts with ffffffff"),
        (("--since", "boot+900000000"), 3, "no rows in that time"),
        (("--since", "nonsense"), 2, "cannot read the time"),
    ],
)
def test_wrong_use(stores: dict[str, Path], tmp_path: Path, args: tuple[str, ...], status: int, words: str) -> None:
    done = run(*args, "-o", str(tmp_path / "x.html"), "--store", str(stores[POISON]))
    got = done.exit_code if done.exception is None else getattr(done.exception, "exit_code", done.exit_code)
    assert (got, words in f"{done.output}{done.exception}") == (status, True)
    assert not (tmp_path / "x.html").exists()


def test_a_place_that_cannot_be_written(stores: dict[str, Path]) -> None:
    done = run("-o", "/nonexistent/x.html", "--store", str(stores[POISON]))
    assert "cannot write /nonexistent/x.html" in str(done.exception)
