"""Programs that are not seen: what is told of them, and that it takes no room whoever comes and goes."""

from __future__ import annotations

from agent.kernel.limits import PROGRAMS_TOLD
from agent.targets.unseen import Unseen, UnseenPrograms

MINUTE_NS = 60_000_000_000


def program(number: int, uid: int = 65534) -> Unseen:
    return Unseen("limiter:p", f"/tmp/p{number}", "unavailable", "could not be examined", "", uid)


def rows(programs: UnseenPrograms, now_ns: int) -> list[bytes]:
    return [batch.rows["reason"][0] for batch in programs.drain(now_ns)]


def test_what_was_told_is_taken_back_and_what_was_not_is_forgotten() -> None:
    programs = UnseenPrograms()
    programs.tell(program(1))
    assert len(rows(programs, MINUTE_NS)) == 1
    programs.tell(program(2))
    for number in (1, 2):
        programs.forget("limiter:p", f"/tmp/p{number}")
    assert rows(programs, MINUTE_NS) == [b"/tmp/p1: no process uses it any more"]
    assert programs.told() == []


def test_programs_that_come_and_go_faster_than_rows_are_made_take_no_room() -> None:
    programs = UnseenPrograms()
    for minute in range(1, 100):
        for number in range(300):
            programs.tell(program(300 * minute + number, uid=1000 + number % 4))
            rows(programs, minute * MINUTE_NS)
            programs.forget("limiter:p", f"/tmp/p{300 * minute + number}")
    assert len(programs._news) + len(programs._rows_of) <= 2 * PROGRAMS_TOLD


def test_beyond_the_bound_the_same_program_is_not_told_as_many() -> None:
    programs = UnseenPrograms()
    for number in range(PROGRAMS_TOLD // 4):
        programs.tell(program(number))
    for _ in range(3):
        programs.tell(program(9999))
    assert str(programs.told()[-1]["reason"]).startswith("3 times a program")


def test_what_is_told_again_as_it_was_has_its_row() -> None:
    programs = UnseenPrograms()
    told = 0
    for _ in range(3):
        programs.tell(program(1))
        programs.forget("limiter:p", "/tmp/p1")
        programs.tell(program(1))
        told += len(rows(programs, MINUTE_NS))
    assert told == 1
    programs.forget("limiter:p", "/tmp/p1")
    assert rows(programs, MINUTE_NS) == [b"/tmp/p1: no process uses it any more"]
    programs.tell(program(1))
    assert len(rows(programs, MINUTE_NS)) == 1
