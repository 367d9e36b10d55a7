"""Finds the files and processes that get uprobes, has the files analyzed in a separate process, and limits each user's
share.
"""
