"""A fake of the kubelet's log endpoint. The API server itself asks it for the logs of pods, so tests need no node.

Text that a test sets comes in; the log of a container goes out, with the options of pods/log that kubectl uses.
"""

from __future__ import annotations

import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.programs.controlplane import CertificateAuthority, ControlPlane

NODE = "node-of-logs"


class FakeKubelet:
    """Serves logs as the kubelet of the node `NODE`.

    Attributes:
        logs: the log of each container, by pod and container.
        previous: the same, of instances before a restart.
    """

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.logs: dict[tuple[str, str], str] = {}
        self.previous: dict[tuple[str, str], str] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        certificate, key = CertificateAuthority(folder).issue("kubelet", "kubelet", server=["127.0.0.1"])
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self._register(plane)

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _register(self, plane: ControlPlane) -> None:
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
        plane.kubectl("apply", "-f", "-", text=json.dumps(node))
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._server.server_address[1]}},
        }
        patch = json.dumps({"status": status})
        plane.kubectl("patch", "node", NODE, "--subresource=status", "--type=merge", "-p", patch)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        kubelet = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                url = urlsplit(self.path)
                _, kind, _, pod, container = url.path.split("/")
                options = {name: values[0] for name, values in parse_qs(url.query).items()}
                known = kubelet.previous if options.get("previous") == "true" else kubelet.logs
                text = known.get((pod, container)) if kind == "containerLogs" else None
                if text is None:
                    self._answer(400, f'container "{container}" in pod "{pod}" has no log\n')
                    return
                lines = text.splitlines(keepends=True)
                self._answer(200, "".join(lines[-int(options.get("tailLines", len(lines))) :] if lines else []))

            def _answer(self, status: int, text: str) -> None:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: Any) -> None:
                """Write nothing: the test reads standard error."""

        return Handler
