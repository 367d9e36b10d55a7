"""Processes of the host: children, privileges, signals, sockets and directories."""
