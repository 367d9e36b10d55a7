"""python -m tests.vm fetch|run|shell: this project on Debian's kernels, in qemu. See tests/vm/README.md."""

from __future__ import annotations

import argparse
import sys

from tests.vm import kernels, machine


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.vm", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    fetch = verbs.add_parser("fetch", help="fetch kernels into the cache")
    fetch.add_argument("kernel", nargs="*", default=list(kernels.SUITES))
    run = verbs.add_parser("run", help="run a command on a kernel; its exit status is the command's")
    run.add_argument("--limit", type=float, default=900, metavar="SECONDS")
    run.add_argument("--console", action="store_true", help="print the kernel's messages too")
    run.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
    run.add_argument("kernel", choices=kernels.SUITES)
    run.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND")
    shell = verbs.add_parser("shell", help="a shell on a kernel")
    shell.add_argument("kernel", choices=kernels.SUITES)
    asked = parser.parse_args()
    try:
        if asked.verb == "fetch":
            for name in asked.kernel:
                print(name, kernels.get(name).release)
            return 0
        if asked.verb == "shell":
            return machine.shell(asked.kernel).status or 0
        command = asked.command[1:] if asked.command[:1] == ["--"] else asked.command
        done = machine.run(asked.kernel, command, limit_s=asked.limit, env=dict(e.split("=", 1) for e in asked.env), echo=True)
    except (kernels.Unavailable, TimeoutError) as error:
        print(f"tests.vm: {error}", file=sys.stderr)
        return 3
    if asked.console or done.status is None:
        print(done.console, file=sys.stderr)
    if done.status is None:
        print("tests.vm: the machine ended before the command did", file=sys.stderr)
        return 4
    return done.status


if __name__ == "__main__":
    sys.exit(main())
