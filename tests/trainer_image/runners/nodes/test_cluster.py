"""Which Ray cluster a run joins, and which are refused before anything is spent. Ray itself is replaced here."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest
import ray
from ray.util import client

from tensorguard.runners.nodes import cluster as cluster_module
from tensorguard.runners.nodes.cluster import Node, has_other_nodes, is_joined, joined_cluster, nodes_with
from tensorguard.runners.preflight import RunRefused


class FakeRay:
    """A Ray cluster. `joined` is the address that was joined; `cpus` has the CPUs of each node, and "a" is this one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, joined: str | None = None, **cpus: float) -> None:
        self.joined, self.cpus = joined, cpus
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        monkeypatch.setattr(ray, "init", self._init)
        monkeypatch.setattr(cluster_module, "_connect", lambda address: None)
        monkeypatch.setattr(ray, "is_initialized", lambda: self.joined is not None)
        monkeypatch.setattr(ray, "shutdown", lambda: setattr(self, "joined", None))
        monkeypatch.setattr(ray, "nodes", self._nodes)
        monkeypatch.setattr(ray, "get_runtime_context", lambda: self)
        monkeypatch.setattr(client.ray, "is_connected", lambda: (self.joined or "").startswith("ray://"))

    def get_node_id(self) -> str:
        return "a"

    def _init(self, address: str, **settings: Any) -> None:
        if address == "nowhere":
            raise ConnectionError
        self.joined = address

    def _nodes(self) -> list[dict[str, Any]]:
        return [
            {"NodeID": name, "NodeManagerAddress": f"10.0.0.{name}", "Alive": True, "Resources": {"CPU": cpus}}
            for name, cpus in self.cpus.items()
        ]


def test_address_is_joined_for_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeRay(monkeypatch)
    with joined_cluster("auto"):
        assert cluster.joined == "auto"
    assert cluster.joined is None
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    with joined_cluster(None):
        assert cluster.joined == "10.0.0.1:6379"
    with joined_cluster("local"):
        assert not is_joined()
    monkeypatch.delenv("RAY_ADDRESS")
    with joined_cluster(None):
        assert not is_joined()


def test_cluster_that_the_process_has_joined_stays_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeRay(monkeypatch, joined="mine", a=1)
    with joined_cluster("auto"):
        assert cluster.joined == "mine"
    assert cluster.joined == "mine"


def test_ray_client_is_refused_by_address_by_variable_and_once_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeRay(monkeypatch)
    with (
        pytest.raises(RunRefused, match="--address is ray://head:10001: a Ray client"),
        joined_cluster("ray://head:10001"),
    ):
        pass
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    with pytest.raises(RunRefused, match="RAY_ADDRESS is ray://"), joined_cluster(None):
        pass
    cluster.joined = "ray://head:10001"
    with pytest.raises(RunRefused, match="has joined Ray as a client"), joined_cluster(None):
        pass


def test_missing_cluster_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeRay(monkeypatch)
    message = r"--address is nowhere, and there is no Ray cluster.*ConnectionError.*RAY_AUTH_MODE=token.*start one"
    with pytest.raises(RunRefused, match=message), joined_cluster("nowhere"):
        pass


def test_nodes_without_cpus_run_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeRay(monkeypatch)
    assert not has_other_nodes()  # nothing is joined
    cluster.joined = "auto"
    for cpus, others in (({"a": 2}, False), ({"a": 2, "b": 0}, False), ({"a": 2, "b": 1}, True), ({"a": 0}, True)):
        cluster.cpus = cpus
        assert has_other_nodes() is others
    cluster.cpus = {"a": 0, "b": 1, "c": 4}
    assert nodes_with({"CPU": 2}) == [Node("c", "10.0.0.c")]
    assert nodes_with({"CPU": 1, "GPU": 1}) == []


@pytest.mark.slow
def test_cluster_that_does_not_answer_is_refused_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeRay(monkeypatch)
    released = threading.Event()
    monkeypatch.setattr(ray, "init", lambda **settings: released.wait(60))
    monkeypatch.setattr(cluster_module, "_ANSWER_SECONDS", 0.0)
    with pytest.raises(RunRefused, match="--address is auto, and the Ray cluster at it does not answer: start it"):
        joined_cluster("auto").__enter__()
    monkeypatch.setattr(cluster_module, "_ANSWER_SECONDS", 60.0)
    with pytest.raises(KeyboardInterrupt):
        joined_cluster("auto", lambda: True).__enter__()
    released.set()


def test_address_at_which_nothing_listens_is_refused_at_once() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with (
            pytest.raises(RunRefused, match=f"--address is {address}, and there is no Ray cluster to join at it"),
            joined_cluster(address),
        ):
            pass
