"""python -m tests.vm fetch|run|shell|test|table: this project on Debian's kernels, in qemu. See tests/vm/README.md."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from tests.vm import kernels, machine


def _fetch(asked: argparse.Namespace) -> int:
    for name in asked.kernel or kernels.SUITES:
        print(name, kernels.get(name).release)
    return 0


def _run(asked: argparse.Namespace) -> int:
    env = dict(e.split("=", 1) for e in asked.env)
    done = machine.run(asked.kernel, asked.command, limit_s=asked.limit, env=env, echo=True, out=asked.out)
    if asked.console or done.status is None:
        print(done.console, file=sys.stderr)
    if done.status is None:
        print("tests.vm: the machine ended before the command did", file=sys.stderr)
        return 4
    return done.status


def _shell(asked: argparse.Namespace) -> int:
    return machine.shell(asked.kernel).status or 0


def _test(asked: argparse.Namespace) -> int:
    from tests.vm import matrix

    return matrix.run(asked.kernel or list(kernels.SUITES), asked.family, asked.command, asked.out, asked.limit)


def _table(asked: argparse.Namespace) -> int:
    from tests.vm import table

    table.rewrite(asked.kernel or list(kernels.SUITES))
    return 0


def main() -> int:
    own, command = sys.argv[1:], []
    if "--" in own:
        own, command = own[: own.index("--")], own[own.index("--") + 1 :]
    parser = argparse.ArgumentParser(prog="python -m tests.vm", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)

    def verb(
        name: str, function: Callable[[argparse.Namespace], int], help_: str, many: bool, limit_s: float = 900
    ) -> argparse.ArgumentParser:
        one = verbs.add_parser(name, help=help_)
        one.set_defaults(function=function, command=command)
        one.add_argument("kernel", nargs="*" if many else None, choices=None if many else kernels.SUITES)
        one.add_argument("--limit", type=float, default=limit_s, metavar="SECONDS", help="of a machine (%(default)g)")
        return one

    verb("fetch", _fetch, "fetch kernels into the cache", many=True)
    run = verb("run", _run, "run KERNEL -- COMMAND: its output and exit status", many=False)
    run.add_argument("--console", action="store_true", help="print the kernel's messages too")
    run.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
    run.add_argument("--out", type=Path, help="the command's /run/out, a directory")
    verb("shell", _shell, "a shell on a kernel", many=False)
    test = verb(
        "test", _test, "the families' tests on kernels (all); arguments of pytest after --", many=True, limit_s=7200
    )
    test.add_argument("--family", action="append", default=[], help="only these")
    test.add_argument("--out", type=Path, help="keep results and logs here")
    verb("table", _table, "boot kernels (all) and rewrite the table of what works where in docs/kernels.md", many=True)
    asked = parser.parse_args(own)
    if asked.verb == "run" and not command:
        parser.error("run needs a command after --")
    try:
        return int(asked.function(asked))
    except (kernels.Unavailable, TimeoutError) as error:
        print(f"tests.vm: {error}", file=sys.stderr)
        return 3


if __name__ == "__main__":
    sys.exit(main())
