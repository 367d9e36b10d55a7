"""The laboratory as a whole: faults of all kinds with seeds that nobody has seen, and what was found of them."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

from agent.lab.replay import score
from tests.patience import PATIENCE
from tests.system.agent import TICKSCOPE

FAULTS = 120
FLOOR = json.loads((Path(__file__).parents[1] / "unit/data/lab/floor.json").read_text())["all"]
#: Two standard deviations of the share of FAULTS that are right, where 97 % are.
NOISE = 0.03


@pytest.mark.timeout(7200 * PATIENCE)
def test_the_score_of_fresh_faults_is_that_of_the_kept_ones(tmp_path: Path) -> None:
    seed = int(time.time()) % 900_000  # those above are held back
    bench = ["lab", "bench", "--runs", str(FAULTS), "--seed-from", str(seed), "--out", str(tmp_path / "bench")]
    subprocess.run([TICKSCOPE, *bench], check=True)
    figures = score(tmp_path / "bench").to_json()["all"]
    print(seed, figures)
    assert figures["faults"] >= 0.8 * FAULTS
    for name in ("detected", "top1_cause", "top1"):
        assert figures[name] >= FLOOR[name] - NOISE, (seed, figures)
