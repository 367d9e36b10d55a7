"""What a process is made of: children, privilege, signals, sockets and directories of its own."""
