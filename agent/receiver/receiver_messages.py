"""Messages between the receiver's process (agent/receiver/receiver_worker.py) and the agent
(agent/receiver/receiver_process.py), over a SOCK_SEQPACKET socket. To the agent: counts as JSON, four times a second;
or HEAD with the descriptor of a memory file that holds rows of ``limiter_decision``, with Unix time in ``t_ns`` (0
unknown).
"""

from __future__ import annotations

import struct

from agent.common.packing import Packer
from agent.tables import TABLES

TABLE = TABLES["limiter_decision"]
PACKER = Packer(TABLE)
#: Both ends of a connection: the client's address and port, and the receiver's, as tables store them.
ENDS = struct.Struct("<16sH16sH")
#: The message's number, from 1; the connection's; its ends.
HEAD = struct.Struct(f"<QQ{ENDS.size}s")
#: The agent's answer: the number of the last message of which it has taken the rows.
ACK = struct.Struct("<Q")
#: Spans, events or logs of a request, so rows of a message.
MAX_RECORDS = 50_000
#: Counts since the start, each shown in ``status`` -> in words, where it is a bound that was reached.
COUNTS = {
    "requests": "",
    "records": "",
    "decisions": "",
    "ignored": "",
    "metrics": "",
    "malformed": "requests that are not OTLP",
    "invalid": "decisions that could not be read",
    "over_rate": "decisions beyond what a user may send a second",
    "too_large": "requests that were too large",
    "slow": "requests that came too slowly",
    "busy": "requests to be sent again later, because the agent did not take them in time",
    "refused": "connections refused, because their user or all users together had too many",
}
#: Of those, decisions that are lost.
LOST = ("invalid", "over_rate")
