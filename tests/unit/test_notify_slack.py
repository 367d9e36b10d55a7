"""Messages for Slack, at a server that is as strict as Slack and fails in each way that a server can."""

from __future__ import annotations

import contextlib
import json
import re
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from exporters import lane, notifier, webhook
from exporters.notify_settings import SlackSettings
from exporters.slack import SlackNotifier
from tests.found import HOSTILE, PLACES, events, finding, hostile
from tests.patience import until
from tests.servers.certificates import self_signed

PATH = "/services/T0/B0/hunter2"
#: Of Slack's control characters only what is escaped, or our own link.
_FREE = re.compile(r"<(?!https://link\.example/[^<>|]*\|more>)|(?<!\|more)>|&(?!amp;|lt;|gt;)")


@dataclass
class Slack:
    """answers: (status, headers, body) of the next requests; then 200 ok. pause_s: before each answer. wrong: why
    requests were refused.
    """

    answers: list[tuple[int, dict[str, str], bytes]] = field(default_factory=list)
    pause_s: float = 0.0
    taken: list[dict[str, Any]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    asked: list[float] = field(default_factory=list)
    url: str = ""

    def answer(self, path: str, kind: str, data: bytes) -> tuple[int, dict[str, str], bytes]:
        self.asked.append(time.monotonic())
        time.sleep(self.pause_s)
        if self.answers:
            return self.answers.pop(0)
        try:
            assert (path, kind) == (PATH, "application/json")
            message = json.loads(data)
            assert set(message) == {"text", "blocks", "unfurl_links", "unfurl_media"}
            check(message)
        except (AssertionError, ValueError) as error:
            self.wrong.append(repr(error))
            return 400, {}, b"invalid_payload"
        self.taken.append(message)
        return 200, {"Content-Type": "text/html"}, b"ok"

    def texts(self) -> list[str]:
        return [
            part["text"]
            for message in self.taken
            for block in message["blocks"]
            for part in [block.get("text"), *block.get("elements", ())]
            if part
        ]


def check(message: dict[str, Any]) -> None:
    """Raises AssertionError for what Slack would refuse or run (docs.slack.dev/reference/block-kit/blocks)."""
    assert 0 < len(message["blocks"]) <= 50
    texts = [message["text"]]
    for block in message["blocks"]:
        if block["type"] == "section":
            parts = [block["text"]]
            assert set(block) == {"type", "text"}
        else:
            assert set(block) == {"type", "elements"} and block["type"] == "context"
            parts = block["elements"]
            assert 0 < len(parts) <= 10
        for part in parts:
            assert set(part) == {"type", "text", "verbatim"} and part["type"] == "mrkdwn" and part["verbatim"] is True
            assert 0 < len(part["text"]) <= 3000
            texts.append(part["text"])
    assert not [text for text in texts if _FREE.search(text)]
    assert all(line.isprintable() for text in texts for line in text.split("\n"))


@contextlib.contextmanager
def slack(tls: ssl.SSLContext | None = None) -> Iterator[Slack]:
    server = Slack()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            status, headers, body = server.answer(self.path, self.headers["Content-Type"], data)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        listener.socket = tls.wrap_socket(listener.socket, server_side=True, do_handshake_on_connect=False)
    server.url = f"http://127.0.0.1:{listener.server_port}{PATH}"
    thread = threading.Thread(target=listener.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        listener.shutdown()
        listener.server_close()


@contextlib.contextmanager
def notifying(url: str, **settings: Any) -> Iterator[SlackNotifier]:
    link = "https://link.example/{}"
    sink = SlackNotifier(
        SlackSettings(**settings), events(), read_url=lambda: url, link=lambda one: link.format(one.text("finding_id"))
    )
    sink.start()
    try:
        yield sink
    finally:
        sink.close()


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses of hundredths of a second."""
    monkeypatch.setattr(lane, "_BACKOFF_S", (0.02, 0.1))


def test_a_finding_is_a_message_when_it_opens_and_when_it_closes() -> None:
    with slack() as server, notifying(server.url) as sink:
        for batch in (
            finding("a", culprit_pid=7, **PLACES),
            finding("a", sentence="longer"),
            finding("n", severity="notice"),
            finding("a", "closed", sentence="It took 2 s"),
        ):
            sink.offer(batch)
        until(lambda: sink.state()["sent"] == 2)
        assert server.wrong == []
        text = "\n".join(server.texts())
        assert "Opened on" in text
        assert "Closed on" in text
        where = ("where: pod shop/api-7c9d, container api, image shop:1.4", "culprit in: unit redis.service")
        for part in ("cause: process_stopped", *where, "`tickscope explain a`", "It took 2 s"):
            assert part in text
        assert "<https://link.example/a|more>" in text
        assert sink.waiting() == sum(sink.losses().values()) == 0


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_shown_and_mentions_nobody(name: str) -> None:
    with slack() as server, notifying(server.url) as sink:
        sink.offer(hostile("a", HOSTILE[name]))
        until(lambda: server.taken or server.wrong)
        assert server.wrong == []


def test_the_longest_sentence_fits() -> None:
    with slack() as server, notifying(server.url) as sink:
        sink.offer(finding("a", sentence="<" * 480, sentence_parts=f'["{"&" * 1000}"]'))
        until(lambda: server.taken or server.wrong)
        assert server.wrong == []


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize(
    "answer",
    [
        (500, {}, b"server_error"),
        (503, {"Content-Type": "text/html"}, b"<html>down</html>"),
        (429, {"Retry-After": "0"}, b"rate_limited"),
    ],
)
def test_what_fails_is_sent_again_once(answer: tuple[int, dict[str, str], bytes]) -> None:
    with slack() as server, notifying(server.url) as sink:
        server.answers = [answer] * 3
        sink.offer(finding("a"))
        until(lambda: sink.state()["state"] == "down")
        until(lambda: sink.state()["state"] == "ok")
        assert (len(server.taken), sink.state()["sent"], sink.state()["retries"]) == (1, 1, 3)
        assert sum(sink.losses().values()) == 0


@pytest.mark.usefixtures("fast")
def test_a_requested_pause_is_kept_and_shown() -> None:
    with slack() as server, notifying(server.url) as sink:
        server.answers = [(429, {"Retry-After": "2"}, b"rate_limited")]
        sink.offer(finding("a"))
        until(lambda: sink.state()["state"] == "retrying")
        state = sink.state()
        assert (state["retry_in_s"], state["last_error"], state["waiting"]) == (2, "HTTP 429 Too Many Requests", 1)
        assert state["remedy"] == "the agent repeats the request; if it lasts, see the state of Slack"
        until(lambda: server.taken)
        assert server.asked[1] - server.asked[0] >= 2.0
        until(lambda: sink.state()["state"] == "ok")
        state = sink.state()
        assert (state["retry_in_s"], state["remedy"], state["dropped"]) == (None, "", 0)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("HTTP 403 Forbidden: action_prohibited, refused", "check the URL of notify.slack: its path, its login"),
        ("HTTP 410 Gone: channel_is_archived", "whether it was revoked"),
        ("HTTP 302 Found", "set the URL that it refers to"),
        ("HTTP 400 Bad Request: invalid_payload", "see the log of Slack"),
        ("HTTP 503 Service Unavailable", "the agent repeats the request"),
        ("ConnectionRefusedError: [Errno 111] Connection refused", "is Slack running and reachable"),
        ("gaierror: [Errno -3] Temporary failure in name resolution", "is Slack running and reachable"),
        ("TimeoutError: no whole answer in time", "A proxy for HTTP is not supported"),
        ("its thread stopped: KeyError: 'a'", "restart tickscope"),
        ("the answer is not Slack's `ok`: is this the URL of a webhook?", "check the URL of notify.slack"),
    ],
)
def test_an_error_has_a_remedy(error: str, words: str) -> None:
    assert words in webhook.remedy(error, "Slack", "notify.slack")


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize(
    ("host", "authority", "words"),
    [
        ("localhost", "", "set notify.slack.ca_file to the server's authority"),
        ("127.0.0.1", "cert", "set the URL of notify.slack to a name in the certificate"),
        ("localhost", "cert", ""),
    ],
)
def test_what_fails_in_tls_is_sent_again_and_has_a_remedy(
    tmp_path: Path, host: str, authority: str, words: str
) -> None:
    key, certificate = self_signed(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    ca_file = str(tmp_path / authority) if authority else ""
    with slack(context) as server:
        url = server.url.replace("http://127.0.0.1", f"https://{host}")
        with notifying(url, ca_file=ca_file) as sink:
            sink.offer(finding("a"))
            until(lambda: sink.state()["sent"] or sink.state()["state"] == "down")
            state = sink.state()
            assert words in str(state["remedy"]) and bool(words) == bool(state["remedy"]), state
            assert (state["sent"], state["waiting"], state["dropped"]) == ((0, 1, 0) if words else (1, 0, 0))
            assert "hunter2" not in json.dumps(state)


@pytest.mark.usefixtures("fast")
def test_a_server_without_tls_has_a_remedy() -> None:
    with slack() as server, notifying(server.url.replace("http://", "https://")) as sink:
        sink.offer(finding("a"))
        until(lambda: sink.state()["state"] == "down")
        assert "check scheme and port" in str(sink.state()["remedy"]), sink.state()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((404, {}, b"no_service"), "HTTP 404 Not Found: no_service"),
        ((404, {}, f"there is no {PATH}".encode()), "HTTP 404 Not Found"),
        ((403, {}, b"action_prohibited\x1b[2J"), r"HTTP 403 Forbidden: action_prohibited\x1b[2J"),
        ((302, {"Location": f"https://else{PATH}"}, b""), "HTTP 302 Found"),
        ((200, {}, b"<html>please log in</html>"), "the answer is not Slack's `ok`: is this the URL of a webhook?"),
    ],
)
def test_what_is_refused_is_dropped_and_counted(answer: tuple[int, dict[str, str], bytes], error: str) -> None:
    with slack() as server, notifying(server.url) as sink:
        server.answers = [answer]
        sink.offer(finding("a"))
        until(lambda: sink.losses()["rejected"] == 1)
        state = sink.state()
        assert (state["sent"], state["dropped"], state["last_error"]) == (0, 1, error)
        assert state["endpoint"] == server.url.removesuffix(PATH)
        assert state["remedy"]
        assert "hunter2" not in json.dumps(state)
        sink.offer(finding("b"))
        until(lambda: server.taken)  # the next one is not held up


def test_a_dead_server_costs_the_loop_nothing_and_the_queue_is_bounded() -> None:
    with notifying(f"http://127.0.0.1:1{PATH}") as sink:
        batches = [finding(str(n)) for n in range(notifier.MOST_WAITING * 2)]
        began = time.monotonic()
        for batch in batches:
            sink.offer(batch)
        assert time.monotonic() - began < 2.0
        until(lambda: sink.state()["retries"])
        assert sink.waiting() <= notifier.MOST_WAITING + sink.at_once
        assert sink.losses()["queue_full"] >= notifier.MOST_WAITING - sink.at_once
        assert "refused" in str(sink.state()["last_error"])
    assert sink.waiting() + sink.losses()["queue_full"] == len(batches)
    assert sink.losses()["shutdown"] == sink.waiting()


def test_the_end_of_the_agent_does_not_wait_for_a_slow_server() -> None:
    with slack() as server:
        server.pause_s = 20.0
        with notifying(server.url) as sink:
            sink.offer(finding("a"))
            until(lambda: server.asked)
            began = time.monotonic()
        assert time.monotonic() - began < 4.0
        assert sink.losses()["shutdown"] == 1


@pytest.mark.usefixtures("fast")
def test_a_slow_server_is_given_up_after_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "TIMEOUT_S", 0.2)
    with slack() as server, notifying(server.url) as sink:
        server.pause_s = 1.0
        sink.offer(finding("a"))
        until(lambda: "no whole answer in time" in str(sink.state()["last_error"]))
        server.pause_s = 0.0
        until(lambda: sink.state()["sent"] == 1)


@pytest.mark.usefixtures("fast")
def test_what_is_too_old_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifier, "MAX_AGE_S", 0.3)
    with slack() as server, notifying(server.url) as sink:
        server.answers = [(500, {}, b"")] * 1000
        for name in "abc":
            sink.offer(finding(name))
        until(lambda: sink.losses()["expired"] == 3)
        server.answers.clear()
        sink.offer(finding("d"))
        until(lambda: sink.state()["sent"] == 1)


def test_many_findings_are_few_messages() -> None:
    with slack() as server, notifying(server.url) as sink:
        server.pause_s = 0.3
        for n in range(60):
            sink.offer(finding(str(n)))
        until(lambda: sink.state()["sent"] == 60)
        assert server.wrong == []
        assert len(server.taken) <= 8


def test_every_secret_is_missing_from_a_state_without_a_url() -> None:
    def read() -> str:
        raise ValueError("url_file: Permission denied: chgrp tickscope, chmod 640 /etc/tickscope/slack")

    sink = SlackNotifier(SlackSettings(), events(), read_url=read, link=lambda _: "")
    sink.start()
    try:
        sink.offer(finding("a"))
        until(lambda: sink.state()["last_error"])
        assert (sink.state()["endpoint"], sink.state()["remedy"]) == ("", "see notify.slack in the settings")
    finally:
        sink.close()
