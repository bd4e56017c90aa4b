"""A real Prometheus on loopback, built once from its Go module and kept outside the tree.

It is built without service discovery and without its web interface: the tests give it addresses, and use its API.
The first build takes minutes on two cores. Tests that need the server are skipped where Go is unavailable.
"""

from __future__ import annotations

import http.client
import json
import signal
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.support.polling import wait_until
from tests.support.programs.controlplane import free_ports
from tests.support.programs.gotools import program
from tests.support.programs.processes import TIMEOUT_SECONDS, Processes

PACKAGE = "github.com/prometheus/prometheus/cmd/prometheus"


def executable() -> Path:
    """The server's program, built if the cache lacks it. Raises GoUnavailable where it cannot be built."""
    return program("prometheus", PACKAGE, tags="remove_all_sd")


class Prometheus:
    """A running server, asked over its HTTP API."""

    def __init__(self, port: int) -> None:
        self.address = f"http://127.0.0.1:{port}"

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The result of an instant query: one entry for each series.

        Raises:
            AssertionError: the server refuses the query; the message is the server's.
        """
        return list(self._get("query", {"query": expression})["result"])

    def targets(self) -> list[dict[str, Any]]:
        """What the server scrapes, each with `health` and `lastError`."""
        return list(self._get("targets", {"state": "active"})["activeTargets"])

    def rules(self) -> list[dict[str, Any]]:
        """The alerts that the server has loaded, each with `name`, `query` and `health`."""
        return [rule for group in self._get("rules", {})["groups"] for rule in group["rules"]]

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.address}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except (OSError, http.client.HTTPException):
            return False

    def _get(self, path: str, parameters: Mapping[str, str]) -> dict[str, Any]:
        url = f"{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                return dict(json.loads(answer.read())["data"])
        except urllib.error.HTTPError as refused:
            raise AssertionError(f"{parameters}: {refused.read().decode()}") from refused


@contextmanager
def server(
    folder: Path, scrape_configs: Sequence[Mapping[str, Any]], rules: Mapping[str, Any] | None = None
) -> Iterator[Prometheus]:
    """Run a server that scrapes every second.

    Args:
        folder: an existing folder for its files.
        scrape_configs: as in Prometheus' configuration.
        rules: groups of alerts, as in a file of rules.
    """
    configuration: dict[str, Any] = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "scrape_configs": list(scrape_configs),
    }
    if rules is not None:
        (folder / "rules.yaml").write_text(yaml.safe_dump(dict(rules)))
        configuration["rule_files"] = [str(folder / "rules.yaml")]
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration))
    (port,) = free_ports(1)
    flags = [
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    processes, running = Processes(folder), Prometheus(port)
    processes.start("prometheus", [str(executable()), *flags])

    def ready() -> bool:
        assert processes.running("prometheus"), processes.log("prometheus")
        return running.is_ready()

    try:
        wait_until(ready, TIMEOUT_SECONDS, lambda: processes.log("prometheus"))
        yield running
    finally:
        processes.kill("prometheus", signal.SIGKILL)
