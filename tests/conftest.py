"""For every test: Ctrl-C works in the programs that tests start.

A shell that runs the tests in the background has SIGINT ignored, which programs inherit, Python's among them.
"""

from __future__ import annotations

import signal

signal.signal(signal.SIGINT, signal.default_int_handler)
