"""Limiters in Redis, read from the wire: pieces of connections in, decisions out (bpf/redis.bpf.c)."""
