"""Which tests CI runs, and what is counted of pytest's output."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import chosen
from tests.groups import counted

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("test", "only_all"),
    [
        ("tests/unit/test_groups.py::test_one", False),
        ("tests/kernel/test_limiter.py::test_allow_in_every_kind_of_binary[plain]", True),
        ("tests/kernel/test_limiter.py::test_allow_in_every_kind_of_binary[piestripped]", False),
        ("tests/servers/test_limiter_models.py::test_go_libraries[go.mod-names0]", False),
        ("tests/servers/test_etcd.py::test_keys_that_a_copy_lacks[trixie]", True),
        ("tests/servers/test_postgresql.py::test_the_state_is_what_the_script_did[own-growing--]", False),
        ("tests/unit/test_lab_kept.py::test_without_a_rule_its_kinds_suffer_and_no_others[syscall]", True),
    ],
)
def test_ci_runs_one_of_each_matrix(test: str, only_all: bool) -> None:
    assert chosen.only_all(test) == only_all


@pytest.mark.parametrize("test", chosen.ONLY_ALL)
def test_what_is_left_out_is_there(test: str) -> None:
    file, _, name = test.partition("::")
    assert f"def {name}(" in (ROOT / file).read_text()


@pytest.mark.parametrize("pattern", [*chosen.ALONE, *(one for files in chosen.WORKERS.values() for one in files)])
def test_files_are_there(pattern: str) -> None:
    assert list(ROOT.glob(pattern))


def test_workers_that_begin_first_are_there() -> None:
    assert [one for one in chosen.FIRST if one not in chosen.WORKERS and not (ROOT / one).exists()] == []
    assert [chosen.rank(test) for test in ("tests/kernel/test_limiter_hot.py::test", "tests/unit/x.py::test")] == [
        0,
        len(chosen.FIRST),
    ]


@pytest.mark.parametrize(
    ("line", "counts"),
    [
        ("5 failed, 1200 passed, 3 skipped, 45 deselected, 2 warnings in 12.50s", (1200, 5, 3)),
        ("==== 7 passed, 1 error in 700.00s (0:11:40) ====", (7, 1, 0)),
        ("no tests ran in 0.01s", (0, 0, 0)),
        ("a worker crashed", (0, 0, 0)),
    ],
)
def test_the_closing_line_is_counted(line: str, counts: tuple[int, int, int]) -> None:
    found = counted(f"FAILED tests/x.py::test - 3 passed in a text\n{line}\n")
    assert (found["passed"], found["failed"], found["skipped"]) == counts


def test_tests_of_one_file_run_in_one_worker() -> None:
    """Else nothing fails at once, but they count each other's programs, and module fixtures are made twice."""
    files = ["tests/unit/test_trial_checks.py", "tests/unit/test_images.py"]
    two = ("-n", "2", "--dist", "loadscope")
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *two, *files]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    ran = re.findall(r"^\[(gw\d)\].* PASSED (\S+?)::", done.stdout, re.MULTILINE)
    assert len(ran) > len(files)
    assert len(set(ran)) == len({file for _, file in ran}) == len(files)
