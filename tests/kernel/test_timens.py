"""Programs in a real time namespace, whose MONOTONIC and BOOTTIME are far from the host's: every time is reported on
the host's clocks.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.batch import Batch
from agent.clock import sample, timens, timex
from agent.common.clocks import boot_ns
from agent.common.host import boot_id as this_boot
from agent.limiters.intake import Intake
from agent.store.hot import HotStore
from tests.kernel.conftest import Attached
from tests.lab import sockets

S = 10**9
AHEAD = timens.Offsets(monotonic_ns=5003 * S, boottime_ns=100_003 * S)
REPOSITORY = Path(__file__).parents[2]


class Inside:
    """A Python program in a time namespace of its own. It says its pid, then does as ``script`` says and waits for the
    end of its input.
    """

    def __init__(self, script: str = "", *args: str) -> None:
        prologue = "import json, os, socket, sys, time\nprint(os.getpid(), flush=True)\n"
        command = [
            "unshare",
            "--time",
            "--monotonic",
            "5003",
            "--boottime",
            "100003",
            "--fork",
            "--kill-child",
            sys.executable,
            "-c",
            prologue + script + "\nsys.stdin.read()",
            *args,
        ]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
        )
        self.pid = int(self.line())

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def close(self) -> None:
        self.process.communicate("")
        assert self.process.returncode == 0


@pytest.fixture
def inside() -> Iterator[Callable[..., Inside]]:
    made: list[Inside] = []

    def start(*args: str) -> Inside:
        made.append(Inside(*args))
        return made[-1]

    yield start
    for one in made:
        one.close()


def test_offsets_of_a_process_and_of_ourselves(inside: Callable[..., Inside]) -> None:
    one = inside()
    assert timens.of(one.pid) == AHEAD
    assert timens.of("self") == (0, 0)
    assert timens.of(one.process.pid) == (0, 0)  # unshare itself: only what it starts is in the namespace
    with pytest.raises(FileNotFoundError):
        timens.of(2**22 + 1)
    timens.require_host()


def test_an_agent_in_a_time_namespace_reports_it_and_how_to_leave_it(inside: Callable[..., Inside]) -> None:
    one = inside(
        "from agent.clock import timens\ntry:\n    timens.require_host()\nexcept Exception as e:\n    print('"
        " '.join(str(e).split()), flush=True)"
    )
    output = one.line()
    assert "time namespace" in output
    assert "BOOTTIME +100003 s" in output
    assert "nsenter --time=/proc/1/ns/time" in output
    inside_checks = inside("from agent import doctor\nprint(json.dumps(doctor.time_namespace()), flush=True)")
    assert json.loads(inside_checks.line())[:2] == ["time-namespace", "fail"]


REPORT = """
sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
sock.connect(sys.argv[1])
made = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
time.sleep(0.05)
base = {"limiter": "inside", "result": "allowed"}
for more in ({"t_ns": made}, {}, {"t_ns": made + 10**12}, {"t_ns": made - 10**14}):
    sock.send(json.dumps({**base, **more}).encode())
print("sent", flush=True)
"""


def test_a_decision_is_dated_by_the_host_whatever_clock_its_program_has(
    inside: Callable[..., Inside], tmp_path: Path
) -> None:
    path = tmp_path / "intake.sock"
    intake = Intake(sockets.datagrams(path))
    before = boot_ns()
    one = inside(REPORT, str(path))
    assert one.line() == "sent"
    sent = boot_ns()
    (batch,) = intake.drain(sent)
    output, received = batch.rows
    assert before < output["t_ns"] < sent - 50_000_000  # when it was made
    assert output["t_ns"] < received["t_ns"] < sent  # when it was sent
    assert set(batch.rows["pid"].tolist()) == {one.pid}
    assert (before - S < batch.rows["proc_start_ns"]).all()
    assert (batch.rows["proc_start_ns"] < sent).all()
    assert intake.losses()["malformed"] == 2  # a time to come, and one before its process was
    intake.close()


def test_what_the_kernel_programs_see_of_it_has_the_host_s_times(
    inside: Callable[..., Inside], attach: Callable[..., Attached]
) -> None:
    rig = attach("tcp")
    before = boot_ns()
    one = inside(
        "with socket.create_server(('127.0.0.1', 0)) as s:\n   "
        " socket.create_connection(s.getsockname()).close()\nprint('done', flush=True)"
    )
    assert one.line() == "done"
    after = boot_ns()
    (row,) = rig.wait("tcp_connect", lambda rows: rows[rows["pid"] == one.pid], lambda rows: len(rows) > 0)
    assert before < row["t_ns"] < after
    assert before < row["proc_start_ns"] < row["t_ns"]


READ = """
before, boot = time.time_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME)
mono, after = time.monotonic_ns(), time.time_ns()
print(json.dumps([before, boot, mono, after]), flush=True)
"""


def test_convert_takes_and_shows_a_process_s_own_times(inside: Callable[..., Inside], tmp_path: Path) -> None:
    store = HotStore(tmp_path / "store", this_boot(), "host", seal_command=())
    store.append([Batch("clock_offset", sample.row(sample.read(), timex.read(), cut=False, synchronised=True))])
    one = inside(READ)
    before, boot, mono, after = json.loads(one.line())
    store.append([Batch("clock_offset", sample.row(sample.read(), timex.read(), cut=False, synchronised=True))])
    store.close()

    def convert(*argv: str) -> dict[str, int]:
        command = [
            sys.executable,
            "-m",
            "agent",
            "clock",
            "convert",
            *argv,
            "-o",
            "json",
            "--store",
            str(tmp_path / "store"),
        ]
        (row,) = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, cwd=REPOSITORY).stdout)[
            "rows"
        ]
        return dict(row)

    for text in (f"boot+{boot // S}.{boot % S:09d}", f"mono+{mono // S}.{mono % S:09d}"):
        row = convert(text, "--pid", str(one.pid))
        assert before - row["err_ns"] - 1000 <= row["wall_ns"] <= after + row["err_ns"] + 1000, text
        assert abs(row["process_boottime_ns"] - boot) < after - before + 1000
        assert abs(row["process_monotonic_ns"] - mono) < after - before + 1000
        assert row["t_ns"] == row["process_boottime_ns"] - AHEAD.boottime_ns
    assert convert(f"mono+{(mono - AHEAD.monotonic_ns) / S:.6f}")["t_ns"] < boot_ns()
    refused = subprocess.run(
        [
            sys.executable,
            "-m",
            "agent",
            "clock",
            "convert",
            "boot+1",
            "--pid",
            str(2**22 + 1),
            "--store",
            str(tmp_path / "store"),
        ],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
    )
    assert refused.returncode == 2
    assert "No such file" in refused.stderr
