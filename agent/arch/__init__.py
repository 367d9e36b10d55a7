"""What depends on the processor: system call numbers and seccomp (``host``), machine code in files (``machine``, with
``x86_code`` for x86-64) and registers by calling convention (``registers``). No other package names any of these.
"""
