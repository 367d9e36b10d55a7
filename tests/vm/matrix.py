"""The families' tests on several kernels: each machine's results and logs in a folder, counts as a table."""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.vm import suite


def run(names: list[str], families: list[str], arguments: list[str], out: Path | None, limit_s: float) -> int:
    """Prints passed, failed and skipped by kernel and family, then what failed and why things were skipped; 1 where
    anything failed.

    families: empty for all. arguments: more of pytest's. out: one folder a kernel is made there. Raises what
    ``suite.run`` raises.
    """
    families = families or list(suite.FAMILIES)
    top = (out or Path(tempfile.mkdtemp(prefix="tickscope-vm-results-"))).resolve()
    suite.prepare()

    def one(name: str) -> suite.Run:
        folder = top / name
        folder.mkdir(parents=True, exist_ok=True)
        return suite.run(
            name, [*(f for family in families for f in suite.files(family)), *arguments], folder, limit_s=limit_s
        )

    with ThreadPoolExecutor(suite.jobs()) as pool:
        runs = dict(zip(names, pool.map(one, names), strict=True))
    for name, done in runs.items():
        print(f"{name} ({done.outcome.kernel.release})")
        for family in families:
            counts = done.counts(family)
            seconds = sum(r.seconds for r in done.results if suite.family_of(r.test) == family)
            print(
                f"  {family:<9} {counts['passed']:>3} passed {counts['failed']:>3} failed {counts['skipped']:>3}"
                f" skipped  {seconds:6.0f} s"
            )
        for result in done.results:
            if result.outcome != "passed":
                print(
                    f"  {result.outcome}: {result.test}:"
                    f" {result.detail.strip().splitlines()[0] if result.detail.strip() else ''}"
                )
        if done.outcome.status not in (0, 1):
            print(f"  pytest ended with {done.outcome.status}: see the log")
    print(f"results and logs: {top}")
    return int(any(done.outcome.status != 0 for done in runs.values()))
