"""python -m tests.vm.lab --runs N --seed-from S --out DIR: the laboratory's clock faults in a VM, and the score of what
was found. See tests/vm/README.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from agent.cli.output import emit_rows, note
from agent.errors import AgentError
from agent.lab.kind import kinds
from agent.lab.replay import score
from agent.lab.report import SCORE_COLUMNS, figures, notes
from tests.vm import kernels, machine
from tests.vm.suite import CHECKOUT

#: What may only be done here.
KINDS = [name for name, kind in kinds().items() if "throwaway_vm" in kind.needs]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.vm.lab", description=__doc__)
    parser.add_argument("--runs", type=int, default=len(KINDS), metavar="N", help="how many faults (%(default)s)")
    parser.add_argument("--seed-from", type=int, default=1, metavar="S", help="seed of the first session (%(default)s)")
    parser.add_argument("--each", type=int, default=8, metavar="N", help="faults a session (%(default)s)")
    parser.add_argument(
        "--kind",
        action="append",
        choices=sorted(kinds()),
        metavar="KIND",
        help="only these; may be given several times (those that need a VM)",
    )
    parser.add_argument("--kernel", choices=kernels.SUITES, default="6.1", help="%(default)s")
    parser.add_argument("--limit", type=float, default=3600, metavar="SECONDS", help="of the machine (%(default)g)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where recordings, truths and logs go")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "tests.vm.guest_lab",
        *map(str, (asked.seed_from, asked.runs, asked.each)),
        "/run/out",
        *(asked.kind or KINDS),
    ]
    try:
        done = machine.run(asked.kernel, command, limit_s=asked.limit, cwd=CHECKOUT, out=asked.out.resolve(), echo=True)
    except (kernels.Unavailable, TimeoutError) as error:
        print(f"tests.vm.lab: {error}", file=sys.stderr)
        return 3
    if done.status is None:
        print(done.console, file=sys.stderr)
    try:
        whole = score(asked.out).to_json()
    except AgentError as error:
        print(f"tests.vm.lab: {error}", file=sys.stderr)
        return 1
    emit_rows(figures(whole), "table", SCORE_COLUMNS)
    for text in notes(whole):
        note(text)
    return done.status if done.status is not None else 4


if __name__ == "__main__":
    sys.exit(main())
