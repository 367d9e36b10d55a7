"""The faults: each ``Kind`` in a file of this room is a kind that the laboratory can inject. See HACKING.md, "Add a
fault kind".
"""
