"""The machine itself: what it does where the emulator breaks a kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.vm import machine

#: Ends the machine as a panic does, having said the argument; not where it has run before.
DIES_ONCE = (
    'test -e /run/out/before && exit 7; touch /run/out/before; echo "$0" > /dev/ttyS0; sleep 2; echo b >'
    " /proc/sysrq-trigger; sleep 60"
)

STILL_ONCE = "test -e /run/out/before && exit 7; touch /run/out/before; echo the last word; sleep 1000"


@pytest.mark.parametrize(
    ("says", "status"), [("Oops: int3: 0000 [#1] SMP NOPTI", 7), ("Oops: general protection fault", None)]
)
def test_only_a_machine_that_the_emulator_broke_is_started_again(
    tmp_path: Path, recwarn: pytest.WarningsRecorder, says: str, status: int | None
) -> None:
    done = machine.run("6.1", ["sh", "-c", DIES_ONCE, says], limit_s=120, out=tmp_path)
    assert done.status == status
    assert any("once more" in str(w.message) for w in recwarn) == (status == 7)


def test_a_machine_that_stands_still_is_started_again(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"(?s)stood still.*the last word.*NMI"):
        done = machine.run("6.1", ["sh", "-c", STILL_ONCE], limit_s=300, out=tmp_path, still_s=60)
    assert done.status == 7
