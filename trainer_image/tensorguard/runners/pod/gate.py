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

A party that can reach the port must not use up the memory or the threads of the pod. So connections, bytes and the time
of a request are limited, and nothing that a request contains is logged.

The module needs the standard library only, so that it starts fast and stays small.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import os
import re
import signal
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PORT = 8265
ENTRYPOINT = "python -m tensorguard.driver"
"""The entrypoint of all RayJobs of the operator."""
_FIELDS = ("status", "message", "error_type", "entrypoint", "job_id", "submission_id", "start_time", "end_time")
"""What KubeRay reads of the state of a job."""
MAX_CONNECTIONS = 16
SECONDS = 10.0
"""From the start of a connection to its end, whatever it is waiting for."""
_MOST_BYTES = 65536
_MOST_HEADER_BYTES = 16384
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
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], ray: str, token: str, submission: str) -> None:
        super().__init__(address, _Request)
        self._ray, self._token = ray, token
        self.submission = submission
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection, or close it if there are too many."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing: a connection that breaks is not an error of the gate."""

    def ask_ray(
        self, method: str, path: str, body: Mapping[str, str] | None = None, *, seconds: float
    ) -> tuple[int, Any]:
        """Send one request to Ray; return the HTTP status and the parsed answer, or its text.

        Args:
            seconds: for how long to wait for each part of the answer.
        """
        content = json.dumps(body).encode() if body is not None else None
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._token}"}
        request = urllib.request.Request(self._ray + path, content, headers, method=method)
        try:
            with _OPENER.open(request, timeout=seconds) as response:
                status, text = response.status, response.read()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read()
        except (OSError, http.client.HTTPException) as error:
            return 502, f"Ray does not answer ({error})"
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text.decode(errors="replace")


class _Head(io.BufferedReader):
    """The input of a request, with a limit for its first line and its headers together."""

    _left = _MOST_HEADER_BYTES

    def readline(self, size: int | None = -1, /) -> bytes:
        most = self._left + 1
        line = super().readline(most if size is None or size < 0 else min(size, most))
        self._left -= len(line)
        if self._left < 0:
            raise http.client.LineTooLong("headers")
        return line


class _Request(BaseHTTPRequestHandler):
    server: Gate
    timeout = SECONDS

    def setup(self) -> None:
        super().setup()
        self.rfile = _Head(self.rfile.detach())
        self._until = time.monotonic() + SECONDS
        self._alarm = threading.Timer(SECONDS, self._end)
        self._alarm.daemon = True
        self._alarm.start()

    def finish(self) -> None:
        self._alarm.cancel()
        super().finish()

    def _end(self) -> None:
        """Wake the thread that waits for the client."""
        with contextlib.suppress(OSError):  # it may be closed already
            self.connection.shutdown(socket.SHUT_RDWR)

    def do_GET(self) -> None:
        path = f"/api/jobs/{self.server.submission}"
        if self.path != path:
            self._refuse()
            return
        status, answer = self.server.ask_ray("GET", path, seconds=self._seconds_left())
        self._answer(status, _state(answer))

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length") or "0"
        if not re.fullmatch("[0-9]{1,9}", length):
            self._answer(400, "Content-Length must be a number of bytes")
            return
        content = self.rfile.read(int(length)) if int(length) <= _MOST_BYTES else b""
        submission = {"entrypoint": ENTRYPOINT, "submission_id": self.server.submission}
        try:
            accepted = self.path == "/api/jobs/" and _submits(content, submission)
        except RecursionError:
            self._answer(400, "the content is nested too deeply")
            return
        if accepted:
            self._answer(*self.server.ask_ray("POST", "/api/jobs/", submission, seconds=self._seconds_left()))
        else:
            self._refuse()

    def _seconds_left(self) -> float:
        return max(0.1, self._until - time.monotonic())

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
    """Whether a request submits this entrypoint under this id. What else it asks for does not count.

    Raises:
        RecursionError: if the content is nested too deeply to be parsed.
    """
    try:
        request = json.loads(content)
    except ValueError:
        return False
    return isinstance(request, dict) and all(request.get(name) == value for name, value in submission.items())


def _state(answer: Any) -> Any:
    """The part of a job's state that KubeRay reads."""
    return {name: answer[name] for name in _FIELDS if name in answer} if isinstance(answer, dict) else answer


def main(environment: Mapping[str, str] = os.environ) -> None:
    """Serve until the pod ends.

    The kernel delivers SIGTERM to the first process of a container only if it handles it. Otherwise the end of a pod
    would take its whole grace period.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    ray = f"http://127.0.0.1:{environment['TENSAFE_RAY_PORT']}"
    Gate(("0.0.0.0", PORT), ray, environment["TENSAFE_RAY_TOKEN"], environment["TENSAFE_SUBMISSION_ID"]).serve_forever()


if __name__ == "__main__":
    main()
