"""``python -m agent`` is ``tickscope``."""

from agent.cli.main import main

main()
