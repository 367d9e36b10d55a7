"""What the receiver's process (agent/receiver/worker.py) and the agent (agent/receiver/process.py) tell each other:
messages of SOCK_SEQPACKET.
"""

from __future__ import annotations

import struct

from agent.common.packing import Packer
from agent.tables import TABLES

TABLE = TABLES["limiter_decision"]
PACKER = Packer(TABLE)
#: To the agent. WHO: a connection has begun, whose is it? ROWS: decisions of one. GONE: it has ended. ALIVE: counts, as
#: JSON, four times a second.
WHO, ROWS, GONE, ALIVE = range(4)
KIND = struct.Struct("<B")
#: A connection's number; by its number the agent says that it has looked who it is.
NUMBER = struct.Struct("<Q")
#: The number; then the client's address and port and the receiver's, as tables store them.
ENDS = struct.Struct("<Q16sH16sH")
#: A message fits well into what a socket holds by default.
PIECE_ROWS = 64
#: Below the run directory, for gRPC's own socket.
DIRECTORY = "otlp"
#: At a time, of HTTP and gRPC together.
CONNECTIONS = 128
#: What is counted since the process began -> in words, where it is a bound that was hit. Each is in ``status``.
COUNTS = {
    "requests": "",
    "records": "",
    "decisions": "",
    "ignored": "",
    "metrics": "",
    "malformed": "requests that were none of OTLP",
    "invalid": "decisions that could not be read",
    "no_share": "sample rates that are no share between a millionth and 1: left out",
    "over_rate": "decisions beyond what a user may send a second",
    "unsent": "decisions that the agent did not take in time",
    "too_large": "requests that were too large",
    "slow": "requests that came too slowly",
    "busy": "requests put off, since their user had enough under way",
    "held_up": (
        "times nothing was read of a user for a while, since he had sent more frames of HTTP/2 than one may a second"
    ),
    "refused": "connections refused, since their user had its share of the places",
    "displaced": "connections closed to make room for other users'",
    "no_descriptor": "times no connection could be taken for want of descriptors",
}
#: Of those, decisions that are lost.
LOST = ("invalid", "over_rate", "unsent")
