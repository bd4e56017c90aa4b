"""The gate in front of Ray's HTTP port: KubeRay's two requests pass, and nothing else reaches Ray."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tensorguard.runners.pod import gate
from tensorguard.runners.pod.gate import ENTRYPOINT, MAX_CONNECTIONS, Gate
from tests.support.polling import wait_until

TOKEN = "a" * 64
JOB = "triage-a1-11111111"
SUBMISSION = {"entrypoint": ENTRYPOINT, "submission_id": JOB}
STATE = {
    "type": "SUBMISSION",
    "status": "RUNNING",
    "message": "Job is currently running.",
    "entrypoint": ENTRYPOINT,
    "submission_id": JOB,
    "runtime_env": {"env_vars": {"A": "1"}},
    "driver_agent_http_address": "http://10.85.0.7:52365",
}
REFUSAL = f"Job with submission_id {JOB} already exists. Please use a different submission_id."


class Dashboard(BaseHTTPRequestHandler):
    """Ray's HTTP server, as far as the gate uses it. It keeps what it received."""

    received: list[tuple[str, str, Any]]

    def do_GET(self) -> None:
        known = any(method == "POST" for method, *_ in self.received)
        self._answer(200 if known else 404, STATE if known else None)

    def do_POST(self) -> None:
        known = any(method == "POST" for method, *_ in self.received)
        self._answer(500 if known else 200, REFUSAL if known else {"submission_id": JOB, "job_id": JOB})

    def _answer(self, status: int, answer: Any) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            self.send_error(401)
            return
        self.received.append((self.command, self.path, json.loads(content) if content else None))
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


class Served:
    """A gate before such a server, both running."""

    def __init__(self) -> None:
        handler = type("Handler", (Dashboard,), {"received": []})
        self.ray = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.received: list[tuple[str, str, Any]] = handler.received  # type: ignore[attr-defined]
        address = f"http://127.0.0.1:{self.ray.server_port}"
        self.gate = Gate(("127.0.0.1", 0), address, TOKEN, JOB)
        for server in (self.ray, self.gate):
            threading.Thread(target=server.serve_forever, args=(0.01,)).start()

    def stop(self) -> None:
        for server in (self.ray, self.gate):
            server.shutdown()
            server.server_close()

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Send a request to the gate as KubeRay does; return the status and the answer."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode() if body is not None else None
        url = f"http://127.0.0.1:{self.gate.server_port}{path}"
        try:
            with urllib.request.urlopen(urllib.request.Request(url, content, method=method)) as response:
                return response.status, json.loads(response.read())
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.gate.server_port), timeout=30)

    def send(self, content: bytes) -> bytes:
        """Send bytes to the gate; return its answer, empty if it closes the connection without one."""
        with self.connect() as connection:
            connection.sendall(content)
            return until_closed(connection)


def until_closed(connection: socket.socket) -> bytes:
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionError:
        pass
    return b"".join(parts)


@pytest.fixture
def served() -> Iterator[Served]:
    running = Served()
    yield running
    running.stop()


def test_requests_of_kuberay_reach_ray_with_rays_token(served: Served) -> None:
    assert served.ask("POST", "/api/jobs/", {**SUBMISSION, "metadata": {"job": "triage"}})[0] == 200
    status, state = served.ask("GET", f"/api/jobs/{JOB}")
    assert (status, state["status"], state["message"]) == (200, "RUNNING", STATE["message"])
    assert served.received == [("POST", "/api/jobs/", SUBMISSION), ("GET", f"/api/jobs/{JOB}", None)]


def test_answer_has_only_what_kuberay_reads(served: Served) -> None:
    served.ask("POST", "/api/jobs/", SUBMISSION)
    _, state = served.ask("GET", f"/api/jobs/{JOB}")
    assert set(state) == {"status", "message", "entrypoint", "submission_id"}


def test_job_that_ray_does_not_know_yet_is_reported_as_ray_reports_it(served: Served) -> None:
    """KubeRay submits the job when it reads 404."""
    assert served.ask("GET", f"/api/jobs/{JOB}")[0] == 404


def test_refusal_of_a_second_submission_reaches_kuberay(served: Served) -> None:
    """KubeRay looks for these words."""
    served.ask("POST", "/api/jobs/", SUBMISSION)
    status, text = served.ask("POST", "/api/jobs/", SUBMISSION)
    assert status == 500 and "Please use a different submission_id" in text


@pytest.mark.parametrize("other", ["triage-a1-11111112", "triage-a2-11111111", "", None, 1, [JOB], f"{JOB}\n"])
def test_no_other_job_is_submitted(other: Any, served: Served) -> None:
    assert served.ask("POST", "/api/jobs/", {**SUBMISSION, "submission_id": other})[0] == 403
    assert served.received == []


@pytest.mark.parametrize(
    "body",
    [
        {"entrypoint": "touch /tmp/stranger", "submission_id": JOB},
        {"entrypoint": f"{ENTRYPOINT}; touch /tmp/stranger", "submission_id": JOB},
        {"entrypoint": [ENTRYPOINT], "submission_id": JOB},
        {"entrypoint": ENTRYPOINT, "submission_id": "../x"},
        {"entrypoint": ENTRYPOINT},
        [ENTRYPOINT],
        b"{",
        b"\xff",
        b" " * 70_000,
    ],
    ids=lambda body: str(body)[:24],
)
def test_no_other_submission_reaches_ray(body: Any, served: Served) -> None:
    assert served.ask("POST", "/api/jobs/", body)[0] == 403
    assert served.received == []


def test_runtime_environment_of_a_submission_does_not_reach_ray(served: Served) -> None:
    """It could name packages to install, or a command to run before the entrypoint."""
    more = {"runtime_env": {"pip": ["evil"]}, "entrypoint_num_cpus": 1, "metadata": {"a": "b"}}
    served.ask("POST", "/api/jobs/", {**SUBMISSION, **more})
    assert served.received == [("POST", "/api/jobs/", SUBMISSION)]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"),
        ("GET", "/api/jobs/"),
        ("GET", "/api/jobs/triage-a1-11111112"),
        ("GET", f"/api/jobs/{JOB}/"),
        ("GET", f"/api/jobs/{JOB}/logs"),
        ("GET", f"/api/jobs/{JOB}?a=b"),
        ("GET", "/api/jobs/../cluster_status"),
        ("GET", "/nodes"),
        ("POST", "/api/jobs"),
        ("POST", f"/api/jobs/{JOB}/stop"),
        ("POST", f"/api/jobs/{JOB}/stop/"),
        ("POST", "/api/serve/applications/"),
        ("PUT", "/api/serve/applications/"),
        ("DELETE", f"/api/jobs/{JOB}"),
        ("PATCH", f"/api/jobs/{JOB}"),
    ],
)
def test_no_other_request_reaches_ray(method: str, path: str, served: Served) -> None:
    body = SUBMISSION if method == "POST" else None
    assert served.ask(method, path, body)[0] in (403, 501)
    assert served.received == []


def test_gate_answers_while_ray_does_not(served: Served) -> None:
    """The gate starts before Ray. KubeRay asks again."""
    served.ray.shutdown()
    served.ray.server_close()
    assert served.ask("GET", f"/api/jobs/{JOB}")[0] == 502


def test_connections_beyond_the_limit_are_closed_at_once(served: Served) -> None:
    assert (MAX_CONNECTIONS, Gate.request_queue_size) == (16, 64)
    idle = [served.connect() for _ in range(MAX_CONNECTIONS)]
    with served.connect() as excess:
        assert until_closed(excess) == b""
    assert not select.select(idle, [], [], 0)[0], "the others are still open"
    idle.pop().close()
    request = b"GET /api/jobs/%s HTTP/1.0\r\n\r\n" % JOB.encode()
    wait_until(lambda: served.send(request).startswith(b"HTTP/1.0 404 "))
    for each in idle:
        each.close()


@pytest.mark.slow
@pytest.mark.parametrize("line", [b"", b"GET / HTTP/1.0\r\nX: ", b"POST / HTTP/1.0\r\nContent-Length: 60000\r\n\r\n"])
def test_connection_ends_after_ten_seconds_though_bytes_arrive(
    line: bytes, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert gate.SECONDS == 10
    monkeypatch.setattr(gate, "SECONDS", 0.5)
    started = time.monotonic()
    with served.connect() as connection, contextlib.suppress(ConnectionError):
        connection.sendall(line)
        while not select.select([connection], [], [], 0.02)[0]:  # a byte every 20 ms, until the gate says something
            connection.sendall(b"a")
        until_closed(connection)
    assert 0.4 < time.monotonic() - started < 9
    assert served.received == []


def test_headers_are_limited_together(served: Served) -> None:
    def with_headers(lines: int) -> bytes:
        return b"GET /api/jobs/%s HTTP/1.0\r\n" % JOB.encode() + lines * (b"X: " + 995 * b"a" + b"\r\n") + b"\r\n"

    assert served.send(with_headers(17)).startswith(b"HTTP/1.0 431 ")
    assert served.received == []
    assert served.send(with_headers(16)).startswith(b"HTTP/1.0 404 ")
    assert served.send(b"GET /" + 17_000 * b"a") == b""
    assert len(served.received) == 1


@pytest.mark.parametrize(
    "length", [b"9" * 5000, b"-1", b"+1", b"1_0", b"\xb2", b"ten"], ids=lambda each: repr(each)[:8]
)
def test_length_that_is_no_number_is_refused(length: bytes, served: Served, capfd: pytest.CaptureFixture[str]) -> None:
    answer = served.send(b"POST /api/jobs/ HTTP/1.0\r\nContent-Length: " + length + b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.0 400 ")
    assert served.received == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("content", [b"[" * 60_000, b'{"a":' * 12_000], ids=["lists", "objects"])
def test_content_that_is_nested_too_deeply_is_refused(
    content: bytes, served: Served, capfd: pytest.CaptureFixture[str]
) -> None:
    assert served.ask("POST", "/api/jobs/", content)[0] == 400
    assert served.received == []
    assert capfd.readouterr() == ("", "")


def test_connection_that_breaks_is_not_logged(served: Served, capfd: pytest.CaptureFixture[str]) -> None:
    ended = threading.Event()
    original = served.gate.shutdown_request

    def shutdown_request(request: Any) -> None:
        original(request)
        ended.set()

    served.gate.shutdown_request = shutdown_request  # type: ignore[method-assign]
    assert served.send(b"GET /" + 17_000 * b"a") == b""
    assert ended.wait(30)
    assert capfd.readouterr() == ("", "")


SERVING = """
from tensorguard.runners.pod import gate
gate.PORT = 0
gate.Gate.service_actions = lambda self: print("serving", flush=True)
gate.main({"TENSAFE_RAY_PORT": "1", "TENSAFE_RAY_TOKEN": "a", "TENSAFE_SUBMISSION_ID": "b"})
"""


@pytest.mark.slow
def test_gate_handles_sigterm() -> None:
    """It is the first process of its container: without a handler, the kernel drops SIGTERM, and the pod took its whole
    grace period to end, here 90 to 120 s.
    """
    with subprocess.Popen([sys.executable, "-c", SERVING], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "serving\n"
        process.terminate()
        process.stdout.close()
        assert process.wait(10) == 0
