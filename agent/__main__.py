"""``python -m agent`` is ``tickscope``."""

from agent.cli import main

main()
