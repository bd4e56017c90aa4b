"""The gate in the head's pod: the only port for KubeRay, which speaks plain HTTP.

`python -m tensorguard.runners.pod.gate` is the command of a sidecar container.

    KubeRay ─► the gate, port 8265, no token ─► Ray's dashboard on the loopback address, Ray's token

The network between KubeRay and the head may read each request, so none carries a token. The gate passes on two
requests and nothing else: submit *the* entrypoint of TenSafe under the one id of the attempt, and read the state of
this job. It builds each of them itself: nothing in a request reaches Ray. Ray refuses a second job of the same id. A
party that can reach the port, against the job's NetworkPolicy, can read this state, and can submit the job before
KubeRay does. It cannot start it twice, and cannot run code. Ray's token never leaves the pod unencrypted.

KubeRay also asks to stop the job when its RayJob is deleted, and ignores the answer. The gate refuses: the pods are
deleted then, and stop the training themselves.

The module needs the standard library only, so that it starts fast and stays small.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PORT = 8265
ENTRYPOINT = "python -m tensorguard.cluster"
"""The entrypoint of all RayJobs of the operator."""
_FIELDS = ("status", "message", "error_type", "entrypoint", "job_id", "submission_id", "start_time", "end_time")
"""What KubeRay reads of the state of a job."""
_MOST_BYTES = 65536
_TIMEOUT_SECONDS = 30.0
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Ray is in the same pod: no proxy of the environment is used."""


class Gate(ThreadingHTTPServer):
    """The server.

    Args:
        address: host and port to listen on.
        ray: URL of Ray's dashboard.
        token: what the dashboard asks for.
        submission: id of the job that is submitted and read; all others are refused.
    """

    daemon_threads = True

    def __init__(self, address: tuple[str, int], ray: str, token: str, submission: str) -> None:
        super().__init__(address, _Request)
        self._ray, self._token = ray, token
        self.submission = submission

    def ask_ray(self, method: str, path: str, body: Mapping[str, str] | None = None) -> tuple[int, Any]:
        """Send one request to Ray; return the HTTP status and the parsed answer, or its text."""
        content = json.dumps(body).encode() if body is not None else None
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._token}"}
        request = urllib.request.Request(self._ray + path, content, headers, method=method)
        try:
            with _OPENER.open(request, timeout=_TIMEOUT_SECONDS) as response:
                status, text = response.status, response.read()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read()
        except OSError as error:
            return 502, f"Ray does not answer ({error})"
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text.decode(errors="replace")


class _Request(BaseHTTPRequestHandler):
    server: Gate
    timeout = _TIMEOUT_SECONDS

    def do_GET(self) -> None:
        path = f"/api/jobs/{self.server.submission}"
        if self.path != path:
            self._refuse()
            return
        status, answer = self.server.ask_ray("GET", path)
        self._answer(status, _state(answer))

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length") or "0"
        content = self.rfile.read(int(length)) if length.isdecimal() and int(length) <= _MOST_BYTES else b""
        submission = {"entrypoint": ENTRYPOINT, "submission_id": self.server.submission}
        if self.path == "/api/jobs/" and _submits(content, submission):
            self._answer(*self.server.ask_ray("POST", "/api/jobs/", submission))
        else:
            self._refuse()

    def _refuse(self) -> None:
        self._answer(403, "this port submits the job of its attempt and reads its state, and does nothing else")

    def _answer(self, status: int, answer: Any) -> None:
        content = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain" if isinstance(answer, str) else "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
        """Log nothing: KubeRay asks every few seconds."""


def _submits(content: bytes, submission: Mapping[str, str]) -> bool:
    """Whether a request submits this entrypoint under this id. What else it asks for does not count."""
    try:
        request = json.loads(content)
    except ValueError:
        return False
    return isinstance(request, dict) and all(request.get(name) == value for name, value in submission.items())


def _state(answer: Any) -> Any:
    """The part of a job's state that KubeRay reads."""
    return {name: answer[name] for name in _FIELDS if name in answer} if isinstance(answer, dict) else answer


def main(environment: Mapping[str, str] = os.environ) -> None:
    """Serve until the pod ends."""
    ray = f"http://127.0.0.1:{environment['TENSAFE_RAY_PORT']}"
    Gate(("0.0.0.0", PORT), ray, environment["TENSAFE_RAY_TOKEN"], environment["TENSAFE_SUBMISSION_ID"]).serve_forever()


if __name__ == "__main__":
    main()
