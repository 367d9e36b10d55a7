"""What is counted when rows are sealed: it answers as the rows would, within its error, and only where it may."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from agent.ask.question import Condition, Question
from agent.batch import Batch, make
from agent.cli.main import cli
from agent.columns import NULL_I64
from agent.store import cells
from agent.store.lifetimes import Lifetimes
from agent.store.retention import Retention, retain
from agent.store.seal import seal_all
from agent.store.sources import opened
from tests.unit.test_query import write

ROWS = 12_000
EDGES = 2 ** np.arange(62)
VALUES = np.unique(
    np.concatenate(
        [np.arange(-300, 300), EDGES, EDGES - 1, -EDGES, np.random.default_rng(1).integers(-(2**62), 2**62, 10_000)]
    )
)


def test_a_bucket_lies_around_its_values() -> None:
    bucket = cells.buckets(VALUES)
    assert (np.diff(bucket) >= 0).all()
    middle = np.array([cells.middle(int(b)) for b in bucket])
    assert (np.abs(middle - VALUES) <= np.abs(VALUES) * cells.ERROR).all()
    assert (middle == VALUES)[np.abs(VALUES) < 64].all()


def test_sql_finds_the_same_bucket() -> None:
    with duckdb.connect() as db:
        db.register("given", pa.table({"it": VALUES}))
        found = db.execute(f"SELECT {cells.bucket_sql('it')} AS bucket FROM given").fetchnumpy()["bucket"]
    assert (found == cells.buckets(VALUES)).all()


def connects(part: int) -> Batch:
    random = np.random.default_rng(part)
    took = np.where(random.random(ROWS) < 0.1, NULL_I64, random.lognormal(9, 0.3, ROWS).astype(np.int64))
    who = random.integers(0, 4, ROWS)
    took[who == 3] = NULL_I64
    return make(
        "tcp_connect",
        ROWS,
        t_ns=np.arange(ROWS) + part * ROWS,
        pid=who,
        comm=np.array([b"a", b"b", b"", b"never"])[who],
        sock_id=np.arange(ROWS),
        result=random.integers(-1, 2, ROWS),
        duration_ns=took,
    )


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three sealed segments and a hot one, each with rows of every group."""
    path = tmp_path_factory.mktemp("written")
    for part in range(3):
        write(path, connects(part), seal=True)
    write(path, connects(3))
    return path


@pytest.fixture
def store(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of ``written``, where cells count however few the rows are."""
    monkeypatch.setattr(cells, "MANY", 1)
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    return tmp_path


def both(store: Path, *by: str, where: str = "", **window: str) -> tuple[Any, Any]:
    """(as it is answered, exactly)."""
    with opened(store, ["tcp_connect"], **window) as source:
        question = Question("tcp_connect", group=by, where=(Condition(where),) if where else ())
        return source.spread(question), source.spread(question, exact=True)


@pytest.mark.parametrize(
    "window", [{}, {"since": "boot+0.000005"}, {"since": "boot+0.00002", "until": "boot+0.00003"}], ids=str
)
@pytest.mark.parametrize("by", [("comm",), ("result", "comm"), ("boot_id", "pid"), ("container_id",)])
def test_cells_answer_like_rows_within_their_error(store: Path, by: tuple[str, ...], window: dict[str, str]) -> None:
    found, exact = both(store, *by, **window)
    assert (found.error, exact.error) == (cells.ERROR, 0.0) or window.get("until")  # within that, no segment lies whole
    assert len(found.rows) == len(exact.rows) >= 1
    for ours, theirs in zip(found.rows, exact.rows, strict=True):
        assert {k: v for k, v in ours.items() if k[0] != "p" or k == "pid"} == {
            k: v for k, v in theirs.items() if k[0] != "p" or k == "pid"
        }
        for p in ("p50", "p90", "p99"):
            assert (ours[p] is None) == (theirs[p] is None) == (theirs["max"] is None)
            assert ours[p] is None or abs(ours[p] - theirs[p]) <= theirs[p] * cells.ERROR


def test_where_cells_cannot_report_rows_are_asked(store: Path) -> None:
    for more in ({"where": "pid = 1"}, {"since": "@5"}):
        found, exact = both(store, "comm", **more)
        assert found == exact
    found, exact = both(store, "sock_id")
    assert found == exact
    (store / "sealed-00000002" / "tcp_connect.cells").unlink()
    found, exact = both(store, "comm")
    assert found == exact
    (store / "sealed-00000001" / "tcp_connect.cells").write_bytes(b"damaged")
    found, exact = both(store, "comm")
    assert found == exact


def test_few_rows_are_asked_themselves(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "MANY", 3 * ROWS + 1)
    found, exact = both(store, "comm")
    assert found == exact


def test_cells_go_with_their_rows(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(store)
    assert len(list(store.glob("*/tcp_connect.cells"))) == 3
    retain(Retention(max_bytes=0, max_age_s=1e9), Lifetimes())
    assert not list(store.glob("*/tcp_connect.cells"))


def test_an_answer_reports_how_near_it_is(store: Path) -> None:
    def ask(*more: str) -> tuple[dict[str, Any], str]:
        done = CliRunner().invoke(
            cli, ["query", "tcp_connect", "--group-by", "comm", "--store", str(store), "-o", "json", *more]
        )
        return json.loads(done.stdout)["measure"], done.stderr

    measure, output = ask()
    assert (measure["error"], "--exact asks the rows" in output) == (cells.ERROR, True)
    assert "1.6%" in measure["percentiles"]
    measure, output = ask("--exact")
    assert (measure["error"], "--exact" in output) == (0.0, False)


def test_sealing_goes_on_where_cells_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(folder: str, table: str) -> list[str]:
        (Path(folder) / cells.name(table)).write_bytes(b"half")
        raise pa.ArrowCapacityError("too much")

    write(tmp_path, connects(0))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cells, "write", fails)
    assert seal_all(99, Retention(max_bytes=1 << 30, max_age_s=1e9)) == []
    assert [file.suffix for file in tmp_path.glob("sealed-*/tcp_connect.*")] == [".parquet"]
    assert "no cells of tcp_connect" in capsys.readouterr().err


def test_cells_with_another_count_are_not_believed(store: Path) -> None:
    """As a disk may change them: still Parquet."""
    for file in store.glob("*/tcp_connect.cells"):
        known = pq.read_table(file)
        more = pa.array(known["_rows"].to_numpy() + 1)
        pq.write_table(known.set_column(known.column_names.index("_rows"), "_rows", more), file)
    found, exact = both(store, "comm")
    assert found == exact


def test_an_answer_loads_nothing_that_takes_long_and_is_not_needed(store: Path) -> None:
    """Rows in memory and in files, and counted ones: starting is most of what a question costs."""
    argv = ["tickscope", "query", "tcp_connect", "--group-by", "comm,peer,result", "--store", str(store)]
    code = f"""
import sys
from click.testing import CliRunner
from agent.cli.main import cli
assert CliRunner().invoke(cli, {argv[1:]}).exit_code == 0
print(*{{"duckdb", "pyarrow.compute", "pyarrow.dataset", "pandas"}} & sys.modules.keys())
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("duckdb", "")


def test_cells_lie_in_order(store: Path) -> None:
    """As they compress and add up best."""
    cells_ = pq.read_table(store / "sealed-00000001" / "tcp_connect.cells", read_dictionary=[]).to_pylist()
    by = [name for name in cells_[0] if name[0] != "_"]
    runs = [tuple(str(cell[name]) for name in by) for cell in cells_]
    assert 1 < len(set(runs)) == 1 + sum(a != b for a, b in pairwise(runs)) < len(runs)
