"""What limiters would have decided on another clock: recorded decisions, replayed through the models
(agent/limiters/models/). Pure: no I/O, no clock.
"""
