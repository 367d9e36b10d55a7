"""Kinds of binaries that uprobes are attached to: one file each, registered by its presence (``KIND``), by the contract
in agent/binaries/contract.py. The BPF programs are those of the family that a kind names.
"""
