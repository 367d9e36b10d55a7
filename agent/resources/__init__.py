"""Limits and use of the resources of watched processes: CPU, memory, descriptors, file systems. Polled, mostly without
privilege.
"""
