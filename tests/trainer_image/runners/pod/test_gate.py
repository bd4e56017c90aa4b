"""The gate in front of Ray's HTTP port: KubeRay's two requests pass, and nothing else reaches Ray."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tensorguard.runners.pod.gate import ENTRYPOINT, Gate

TOKEN = "a" * 64
STATE = {
    "type": "SUBMISSION",
    "status": "RUNNING",
    "message": "Job is currently running.",
    "entrypoint": ENTRYPOINT,
    "submission_id": "triage-a1-x",
    "runtime_env": {"env_vars": {"A": "1"}},
    "driver_agent_http_address": "http://10.85.0.7:52365",
}


class Dashboard(BaseHTTPRequestHandler):
    """Ray's HTTP server, as far as the gate uses it. It keeps what it received."""

    received: list[tuple[str, str, Any]]

    def do_GET(self) -> None:
        self._answer(STATE if self.path == "/api/jobs/triage-a1-x" else None)

    def do_POST(self) -> None:
        self._answer({"submission_id": "triage-a1-x", "job_id": "triage-a1-x"})

    def _answer(self, answer: Any) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            self.send_error(401)
            return
        self.received.append((self.command, self.path, json.loads(content) if content else None))
        body = json.dumps(answer).encode()
        self.send_response(200 if answer else 404)
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
        self.gate = Gate(("127.0.0.1", 0), address, TOKEN)
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


@pytest.fixture
def served() -> Iterator[Served]:
    running = Served()
    yield running
    running.stop()


def test_requests_of_kuberay_reach_ray_with_rays_token(served: Served) -> None:
    submission = {"entrypoint": ENTRYPOINT, "submission_id": "triage-a1-x", "metadata": {"job": "triage"}}
    assert served.ask("POST", "/api/jobs/", submission)[0] == 200
    status, state = served.ask("GET", "/api/jobs/triage-a1-x")
    assert (status, state["status"], state["message"]) == (200, "RUNNING", STATE["message"])
    assert served.received == [
        ("POST", "/api/jobs/", {"entrypoint": ENTRYPOINT, "submission_id": "triage-a1-x"}),
        ("GET", "/api/jobs/triage-a1-x", None),
    ]


def test_answer_has_only_what_kuberay_reads(served: Served) -> None:
    _, state = served.ask("GET", "/api/jobs/triage-a1-x")
    assert set(state) == {"status", "message", "entrypoint", "submission_id"}


def test_unknown_job_is_reported_as_ray_reports_it(served: Served) -> None:
    """KubeRay submits the job when it reads 404."""
    assert served.ask("GET", "/api/jobs/triage-a1-y")[0] == 404


@pytest.mark.parametrize(
    "body",
    [
        {"entrypoint": "touch /tmp/stranger", "submission_id": "j"},
        {"entrypoint": f"{ENTRYPOINT}; touch /tmp/stranger", "submission_id": "j"},
        {"entrypoint": [ENTRYPOINT], "submission_id": "j"},
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
    served.ask("POST", "/api/jobs/", {"entrypoint": ENTRYPOINT, "submission_id": "j", **more})
    assert served.received == [("POST", "/api/jobs/", {"entrypoint": ENTRYPOINT, "submission_id": "j"})]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"),
        ("GET", "/api/jobs/"),
        ("GET", "/api/jobs/triage-a1-x/logs"),
        ("GET", "/api/jobs/triage-a1-x?a=b"),
        ("GET", "/api/jobs/../cluster_status"),
        ("GET", "/nodes"),
        ("POST", "/api/jobs"),
        ("POST", "/api/jobs/triage-a1-x/stop"),
        ("POST", "/api/jobs/triage-a1-x/stop/"),
        ("POST", "/api/serve/applications/"),
        ("PUT", "/api/serve/applications/"),
        ("DELETE", "/api/jobs/triage-a1-x"),
        ("PATCH", "/api/jobs/triage-a1-x"),
    ],
)
def test_no_other_request_reaches_ray(method: str, path: str, served: Served) -> None:
    body = {"entrypoint": ENTRYPOINT, "submission_id": "j"} if method == "POST" else None
    assert served.ask(method, path, body)[0] in (403, 501)
    assert served.received == []


def test_gate_answers_while_ray_does_not(served: Served) -> None:
    """The gate starts before Ray. KubeRay asks again."""
    served.ray.shutdown()
    served.ray.server_close()
    assert served.ask("GET", "/api/jobs/triage-a1-x")[0] == 502
