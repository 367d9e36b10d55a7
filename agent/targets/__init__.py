"""Which files and processes are to be probed: found, examined in a process of their own, held to shares."""
