"""Handshakes through memory: the socket is known by what the thread read around the calls, and never a wrong one.

Programs tell each handshake's ports, and when its first call began and ended: which is how its row is recognised.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.kernel.tls_rig import PROLOGUE, Rig, names
from tests.patience import until

pytest_plugins = ["tests.kernel.tls_fixtures"]
pytestmark = pytest.mark.parametrize("rig", [("tcp",)], indirect=True)

#: An SSLObject that notes its first call: at[0] before, at[1] after.
NOTED = (
    PROLOGUE
    + """
import asyncio, json, random
def now(): return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
class Noted(ssl.SSLObject):
    at = None
    def do_handshake(self):
        before = now()
        try: super().do_handshake()
        finally: self.at = self.at or (before, now())
cc.sslobject_class = sc.sslobject_class = Noted
handshakes = []
def note(role, o, local, remote): handshakes.append([role, *o.at, local, remote])
"""
)

#: Clients and servers in one loop; every server takes its time, so that many handshakes go on at once.
LOOP = (
    NOTED
    + """
async def main(uvloop):
    async def serve(reader, writer):
        o = writer.get_extra_info("ssl_object")
        note("server", o, writer.get_extra_info("sockname")[1], writer.get_extra_info("peername")[1])
        writer.write(await reader.read(1)); await writer.drain(); await reader.read(1); writer.close()
    servers = [await asyncio.start_server(serve, "127.0.0.1", 0, ssl=sc, backlog=200) for _ in range(3)]
    ports = [s.sockets[0].getsockname()[1] for s in servers]
    plain = await asyncio.start_server(lambda r, w: w.write(b"x" * 900), "127.0.0.1", 0)
    async def noise():
        r, w = await asyncio.open_connection("127.0.0.1", plain.sockets[0].getsockname()[1])
        while await r.read(100): await asyncio.sleep(0)
    async def one(i):
        await asyncio.sleep(random.random() / 10)
        r, w = await asyncio.open_connection("127.0.0.1", ports[i % 3], ssl=cc, server_hostname="localhost")
        note("client", w.get_extra_info("ssl_object"), w.get_extra_info("sockname")[1], w.get_extra_info("peername")[1])
        w.write(b"x"); await r.read(1); w.close()
    tasks = [asyncio.ensure_future(noise()) for _ in range(5)]
    await asyncio.gather(*(one(i) for i in range(100)))
    await asyncio.sleep(0.1)
    print(json.dumps(handshakes))
"""
)


def judge(rig: Rig, pid: int, reported: list[list[object]]) -> tuple[int, int]:
    """(how many handshakes are known, of how many); fails where one is reported to go over another's socket."""
    rows = rig.of(pid)
    start = rows["t_ns"] - rows["duration_ns"]
    known = 0
    for role, before, after, local, remote in reported:
        mine = rows[(start >= before) & (start <= after) & (np.array(names(rows, "role")) == role)]
        assert len(mine) == 1, (role, local, remote, len(mine))
        if mine["sock_id"][0] >= 0:
            assert (mine["sport"][0], mine["dport"][0]) == (local, remote), (role, local, remote)
            known += 1
    assert rig.lost() == 0
    # other programs of this host may shake hands, too
    until(lambda: not int(rig.source.control["tcp_threads"][0]), turn=rig.pump)
    return known, len(reported)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_an_event_loop(rig: Rig, certs: Path, loop: str) -> None:
    run = "asyncio.run(main(False))" if loop == "asyncio" else "import uvloop; uvloop.run(main(True))"
    pid, out = rig.run(sys.executable, "-c", LOOP + run, certs)
    known, of = judge(rig, pid, json.loads(out))
    print(loop, known, of)
    assert of == 200
    assert known >= 0.95 * of


#: By hand: one thread, both ends of 100 connections. argv[2]: what is done between a read and the call that gets what
#: was read.
BY_HAND = (
    NOTED
    + """
import selectors, collections
way = sys.argv[2]
size = 300 if way == "small" else 65536
sel, queue, left = selectors.DefaultSelector(), collections.deque(), 200
listeners = [socket.create_server(("127.0.0.1", 0), backlog=200) for _ in range(3)]
class End:
    def __init__(self, s, role):
        self.s, self.role, self.done = s, role, False
        self.ports = s.getsockname()[1], s.getpeername()[1]
        self.i, self.out = ssl.MemoryBIO(), ssl.MemoryBIO()
        context, more = (sc, {"server_side": True}) if role == "server" else (cc, {"server_hostname": "localhost"})
        self.o = context.wrap_bio(self.i, self.out, **more)
        self.greeting = 1 if way == "starttls" and role == "client" else 0
        if way == "starttls" and role == "server": s.send(b"S")
        s.setblocking(False); sel.register(s, selectors.EVENT_READ, self)
        if not self.greeting: self.step()
    def step(self):
        global left
        try: self.o.do_handshake()
        except ssl.SSLWantReadError: pass
        else:
            self.done = True; left -= 1; sel.unregister(self.s)
            note(self.role, self.o, *self.ports)
        data = self.out.read()
        if data: self.s.send(data)
    def read(self):
        try: data = self.s.recv(self.greeting or size)
        except BlockingIOError: return
        if self.greeting: self.greeting = 0; self.step(); return
        if way == "batch" or way == "late": queue.append((self, data))
        else: self.take(data)
    def take(self, data):
        self.i.write(data)
        if not self.done: self.step()
ends = []
for i in range(100):
    a = socket.create_connection(listeners[i % 3].getsockname()); b = listeners[i % 3].accept()[0]
    ends += [End(b, "server"), End(a, "client")]
while left:
    ready = [k.data for k, _ in sel.select(0 if queue else 1)]
    random.shuffle(ready)
    for e in ready:
        e.read()
        while way == "late" and len(queue) > 1: (lambda p: p[0].take(p[1]))(queue.popleft())
    if way == "batch" or not ready:
        random.shuffle(queue)
        while queue: (lambda p: p[0].take(p[1]))(queue.popleft())
print(json.dumps(handshakes))
"""
)


@pytest.mark.parametrize("variant", ["at once", "small", "starttls", "batch", "late"])
def test_by_hand(rig: Rig, certs: Path, variant: str) -> None:
    """What is read is handed over at once (in whole or in pieces, after a greeting in the clear); after all that is
    ready was read; or one read late.
    """
    pid, out = rig.run(sys.executable, "-c", BY_HAND, certs, variant)
    known, of = judge(rig, pid, json.loads(out))
    print(variant, known, of)
    assert of == 200
    if variant in ("at once", "small", "starttls"):
        assert known >= 0.95 * of


NODE = """
const tls = require('tls'), fs = require('fs'), d = process.argv[1], rows = [];
const cert = fs.readFileSync(d + '/cert'), key = fs.readFileSync(d + '/key');
const versions = ['TLSv1.2', 'TLSv1.3', 'TLSv1.3'], servers = [];
let left = 100;
const end = () => { if (!--left) setTimeout(() => { console.log(JSON.stringify(rows)); process.exit(0); }, 200); };
const one = (i) => {
  const port = servers[i % 3].address().port;
  const c = tls.connect({host: '127.0.0.1', port, ca: cert, servername: 'localhost'}, () => {
    rows.push([c.localPort, c.remotePort, c.getProtocol()]); c.write('x');
  });
  c.on('data', () => c.end()).on('close', end).on('error', (e) => { console.error(e); process.exit(1); });
};
const listen = (i) => {
  if (i == 3) { for (let k = 0; k < 100; k++) setTimeout(one, Math.random() * 100, k); return; }
  const echo = c => c.on('data', x => c.write(x)).on('error', () => {});
  const s = tls.createServer({cert, key, maxVersion: versions[i], minVersion: versions[i]}, echo);
  servers.push(s); s.listen(0, '127.0.0.1', () => listen(i + 1));
};
setTimeout(() => listen(0), 600);
"""


@pytest.mark.skipif(not shutil.which("node"), reason="no node")
def test_node(rig: Rig, certs: Path) -> None:
    """It cannot tell when its calls were; but each port is one handshake's, and the version tells the server."""
    pid, out = rig.run("node", "-e", NODE, certs)
    reported = json.loads(out)
    version = {(local, remote): which.removeprefix("TLSv").encode() for local, remote, which in reported}
    rows = rig.of(pid)
    assert (len(reported), names(rows, "role").count("client"), len(rows)) == (100, 100, 200)
    known = rows[rows["sock_id"] >= 0]
    ends = [
        (s, d) if role == "client" else (d, s)
        for s, d, role in zip(known["sport"].tolist(), known["dport"].tolist(), names(known, "role"), strict=True)
    ]
    assert [version[end] for end in ends] == known["tls_version"].tolist()
    assert len(set(zip(ends, names(known, "role"), strict=True))) == len(ends), "two rows over one socket"
    assert len(known) >= 190
