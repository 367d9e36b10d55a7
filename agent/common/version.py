"""The version. setup.py reads it here; importlib.metadata would cost the agent 1.5 MB."""

VERSION = "0.1.0"
