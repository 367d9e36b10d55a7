"""Programs that are not seen: what is reported of them, and that it takes no room whoever comes and goes."""

from __future__ import annotations

from agent.kernel.limits import PROGRAMS_REPORTED
from agent.targets.unprobed import UnprobedProgram, UnprobedPrograms

MINUTE_NS = 60_000_000_000


def program(number: int, uid: int = 65534) -> UnprobedProgram:
    return UnprobedProgram("limiter:p", f"/tmp/p{number}", "unavailable", "could not be examined", "", uid)


def rows(programs: UnprobedPrograms, now_ns: int) -> list[bytes]:
    return [batch.rows["reason"][0] for batch in programs.drain(now_ns)]


def test_what_was_reported_is_taken_back_and_what_was_not_is_forgotten() -> None:
    programs = UnprobedPrograms()
    programs.report(program(1))
    assert len(rows(programs, MINUTE_NS)) == 1
    programs.report(program(2))
    for number in (1, 2):
        programs.forget("limiter:p", f"/tmp/p{number}")
    assert rows(programs, MINUTE_NS) == [b"/tmp/p1: no process uses it any more"]
    assert programs.reported() == []


def test_programs_that_come_and_go_faster_than_rows_are_made_take_no_room() -> None:
    programs = UnprobedPrograms()
    for minute in range(1, 100):
        for number in range(300):
            programs.report(program(300 * minute + number, uid=1000 + number % 4))
            rows(programs, minute * MINUTE_NS)
            programs.forget("limiter:p", f"/tmp/p{300 * minute + number}")
    assert len(programs._news) + len(programs._rows_of) <= 2 * PROGRAMS_REPORTED


def test_beyond_the_bound_the_same_program_is_not_reported_as_many() -> None:
    programs = UnprobedPrograms()
    for number in range(PROGRAMS_REPORTED // 4):
        programs.report(program(number))
    for _ in range(3):
        programs.report(program(9999))
    assert str(programs.reported()[-1]["reason"]).startswith("3 reports of programs")


def test_what_is_reported_again_as_it_was_has_its_row() -> None:
    programs = UnprobedPrograms()
    reported = 0
    for _ in range(3):
        programs.report(program(1))
        programs.forget("limiter:p", "/tmp/p1")
        programs.report(program(1))
        reported += len(rows(programs, MINUTE_NS))
    assert reported == 1
    programs.forget("limiter:p", "/tmp/p1")
    assert rows(programs, MINUTE_NS) == [b"/tmp/p1: no process uses it any more"]
    programs.report(program(1))
    assert len(rows(programs, MINUTE_NS)) == 1
