"""Replays recorded decisions on another clock, through the models (agent/limiters/models/). Pure: no I/O, no clock."""
