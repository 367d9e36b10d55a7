"""How the machine under test differs from a real one. tests/vm sets both for its emulated machines; 1 elsewhere."""

from __future__ import annotations

import os

#: Factor for the limits on waiting, and for pauses that give the agent time to notice something.
PATIENCE = float(os.environ.get("TICKSCOPE_TEST_PATIENCE", "1"))
#: Factor for the sizes of clock steps and for the errors allowed: emulated clocks take 10 to 100 us to read. Only where
#: the clock is the tests' own.
COARSE = int(os.environ.get("TICKSCOPE_TEST_COARSE", "1"))
