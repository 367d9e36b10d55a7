"""The faults: each ``Kind`` in a file of this package can be injected. See HACKING.md, "Add a fault kind"."""
