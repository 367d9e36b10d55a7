"""The resident agent: its one thread, and what stands around it."""
