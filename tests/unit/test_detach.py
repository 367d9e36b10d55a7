"""What is closed beside the loop: the end of a run waits for it, and not for ever."""

from __future__ import annotations

import os
import socket
import struct
import time

from agent.kernel import detach


def lingering(seconds: int) -> tuple[int, socket.socket]:
    """A descriptor whose close takes that long: what it sent, the other end does not read."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sock = socket.create_connection(listener.getsockname())
        peer, _ = listener.accept()
    sock.setblocking(False)
    try:
        while True:
            sock.send(bytes(1 << 16))
    except BlockingIOError:
        sock.setblocking(True)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, seconds))
    return sock.detach(), peer


def test_the_end_of_a_run_waits_for_a_while_only() -> None:
    (slow, peer), (ours, theirs) = lingering(1), socket.socketpair()
    began = time.monotonic()
    closing = detach.close_aside([slow, ours.detach()])
    detach.finish(0.1)
    assert time.monotonic() - began < 0.7
    assert not closing.done
    detach.finish()
    assert closing.done
    assert theirs.recv(1) == b""
    assert not os.path.exists(f"/proc/self/fd/{slow}")
    peer.close()
    theirs.close()
