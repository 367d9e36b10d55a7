"""What watched processes may have, and how much of it they use: processor, memory, descriptors, file systems. Polled,
mostly without privilege.
"""
