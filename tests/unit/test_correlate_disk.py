"""A disk that keeps calls waiting: frozen, or busy with what another process writes."""

from __future__ import annotations

import pytest

from agent.columns import NULL_I64
from tests.unit.correlate_scenarios import APP_PID, START, T0, UNTIL, Host, S, around_stall, call, latest, run

MB = 1_000_000
WRITER = {
    "pid": 77,
    "tid": 77,
    "proc_start_ns": START + 5,
    "comm": b"backup",
    "syscall": b"fsync",
    "fd_type": b"file",
    "device": b"sda",
}


def found(*calls: dict[str, object], **columns: object) -> dict[str, object]:
    def stall(host: Host) -> None:
        host.stalled_decision(31.4, 1.4, children=False)
        call(
            host,
            **(
                {"syscall": b"fsync", "fd_type": b"file", "device": b"sda", "written_bytes": 1024, "frozen": 0}
                | columns
            ),
        )
        for other in calls:
            call(host, **(WRITER | other))

    (one,) = latest(run(around_stall(stall), UNTIL))
    return one


def test_who_writes_much_to_the_same_disk_is_the_culprit() -> None:
    one = found({"written_bytes": 20 * MB})
    assert (one["cause"], one["cause_detail"]) == ("disk", "contended")
    assert (one["culprit_pid"], one["culprit_comm"], one["culprit_object"]) == (77, "backup", "/dev/sda")
    assert "backup pid 77 wrote 20 MB to sda meanwhile and kept it busy, while fsync of python3 pid 4242" in str(
        one["sentence"]
    )


def test_a_call_of_the_writer_that_ends_later_counts() -> None:
    one = found({"written_bytes": 20 * MB, "t_ns": T0 + int(33.2 * S), "duration_ns": 3 * S})
    assert one["cause"] == "disk"


def test_writers_elsewhere_or_of_little_or_at_other_times_are_no_cause() -> None:
    for other in (
        {"written_bytes": 20 * MB, "device": b"sdb"},
        {"written_bytes": 4096},
        {"written_bytes": 20 * MB, "t_ns": T0 + 25 * S, "duration_ns": S},
        {"written_bytes": 20 * MB, "duration_ns": S // 5},
    ):
        one = found(other)
        assert (one["cause"], one["cause_detail"], one["culprit_object"]) == ("syscall", "fsync", "/dev/sda")
        assert "no other process wrote much to sda" in str(one["ruled_out"])


def test_who_writes_as_much_itself_is_not_held_up_by_another() -> None:
    assert found({"written_bytes": 20 * MB}, written_bytes=19 * MB)["cause"] == "syscall"


def test_a_frozen_file_system_is_reported() -> None:
    one = found(syscall=b"write", frozen=1)
    assert (one["cause"], one["cause_detail"], one["culprit_object"]) == ("disk", "frozen", "/dev/sda")
    assert (
        "the file system on sda was frozen (as for a snapshot) while write of python3 pid 4242 waited for 1.25 s"
        in str(one["sentence"])
    )


def test_a_lock_on_a_file_is_no_matter_of_its_disk() -> None:
    one = found({"written_bytes": 20 * MB}, syscall=b"flock", holder_pid=9, holder_comm=b"other")
    assert (one["cause"], one["cause_detail"]) == ("syscall", "flock")
    assert "no other process wrote much" not in str(one["ruled_out"])


@pytest.mark.parametrize(("cgroup", "culprit"), [(7, 77), (8, NULL_I64)])
def test_what_a_cgroup_may_do_on_a_disk_is_used_up_by_those_in_it(cgroup: int, culprit: int) -> None:
    def stall(host: Host) -> None:
        host.stalled_decision(31.4, 1.4, children=False)
        host.add(
            "resource", at=32, pid=APP_PID, kind="io", object=b"/sys/fs/cgroup/shop", interval_ns=S, used=MB, limit=MB
        )
        call(host, syscall=b"fsync", fd_type=b"file", device=b"sda", written_bytes=1024, frozen=0, cgroup_id=7)
        call(host, **(WRITER | {"written_bytes": 20 * MB, "cgroup_id": cgroup}))

    (one,) = latest(run(around_stall(stall), UNTIL))
    assert (one["cause"], one["cause_detail"], one["culprit_object"]) == ("disk", "throttled", "/sys/fs/cgroup/shop")
    assert one["culprit_pid"] == culprit
    assert ("backup" in str(one["sentence"])) == (culprit == 77)
