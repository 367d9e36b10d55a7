"""Draws ``tickscope top`` for the documents: ``python -m tests.docs.top`` (two minutes; needs no root).

A store is filled from recordings of the laboratory; the last of them is written as time goes on, as by a live agent.
"""

from __future__ import annotations

import re
import tempfile
import threading
import time

from agent.common.host import boot_id
from agent.store.hot import HotStore
from tests.docs import ROOT
from tests.docs.screen import svg
from tests.replayed import Standing, fill, kept, spent
from tests.screens import Program

PICTURES = {size: ROOT / f"docs/top-{size}.svg" for size in ("80x24", "120x40", "200x60")}
EXPLAIN = ROOT / "docs/top-explain.svg"
#: A clock that was stepped, a lossy network, a poisonous message, a server that is stopped.
RECORDINGS = ("0020-2", "4038-1", "4038-4", "4038-8")


def main() -> None:
    first_ns, last_ns = spent(kept(RECORDINGS[-1])[1])
    with tempfile.TemporaryDirectory() as folder, Standing() as standing:
        store = HotStore(f"{folder}/store", boot_id(), "web1", seal_command=())
        writer = threading.Thread(
            target=fill,
            args=(store, *RECORDINGS),
            kwargs={"ahead_s": (last_ns - first_ns) / 1e9 + 10, "standing": standing},
        )
        writer.start()
        left = {size: Program(["top", "--store", f"{folder}/store"], *map(int, size.split("x"))) for size in PICTURES}
        end = time.monotonic() + 120
        while left:
            assert time.monotonic() < end, next(iter(left.values())).text()
            for size, program in list(left.items()):
                program.read(0.1)
                if re.search("OPEN .*process_stopped", text := program.text()) and "reading the store" not in text:
                    PICTURES[size].write_text(svg(program.screen, "tickscope top"))
                    if size == "120x40":
                        program.press("\r")
                        program.until(lambda text: "symptom " in text)
                        EXPLAIN.write_text(svg(program.screen, "tickscope top: Enter on a finding"))
                        program.press("q")
                    program.press("q")
                    program.ended()
                    del left[size]
        writer.join()
        store.close()


if __name__ == "__main__":
    main()
