"""What nodes must share before a run: each difference is refused with the node and the fix, and leaves no file behind.

Nodes are calls in this process. A node that does not share a folder has another one in its place.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import ray

from tensorguard.runners.nodes import checks
from tensorguard.runners.nodes.checks import check_nodes
from tensorguard.runners.nodes.cluster import Node
from tensorguard.runners.nodes.node_files import KEY_FILE_VARIABLE, digest_of
from tensorguard.runners.preflight import RunRefused
from tensorguard.runners.run_folder import lock_run_folder

NODES = [Node("1", "10.0.0.1"), Node("2", "10.0.0.2")]


@dataclass
class Nodes:
    """Two nodes. `changes` has what the second one does before it looks around."""

    base: Path
    patch: pytest.MonkeyPatch
    key: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    before_second: Callable[[], Any] = lambda: None
    after_second: Callable[[], Any] = lambda: None
    second_replies: Any = None

    @property
    def run(self) -> Path:
        return self.base / "run"

    @property
    def key_file(self) -> Path:
        return self.base / "job.key"

    def check(self) -> str:
        """Check the nodes while this process holds the lock of the run's folder, as the driver does."""
        with lock_run_folder(self.run):
            return check_nodes(NODES, [self.run], "salt")

    def call(self, nodes: Sequence[Node], task: Callable[..., Any], *arguments: Any) -> list[Any]:
        results = []
        for node in nodes:
            second = node is NODES[1]
            self.patch.setattr(ray, "get_runtime_context", lambda node=node: _Context(node))
            if second:
                self.before_second()
            results.append(task(*arguments))
            if second:
                self.after_second()
        if self.second_replies is not None:
            results[1] = self.second_replies
        return results


@dataclass
class _Context:
    node: Node

    def get_node_id(self) -> str:
        return self.node.id


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Nodes:
    nodes = Nodes(tmp_path, monkeypatch)
    nodes.key_file.touch(mode=0o600)
    nodes.key_file.write_bytes(nodes.key)
    monkeypatch.setenv(KEY_FILE_VARIABLE, str(nodes.key_file))
    monkeypatch.setattr(checks, "call_on_nodes", nodes.call)
    return nodes


def refusal(nodes: Nodes) -> str:
    with pytest.raises(RunRefused) as refused:
        nodes.check()
    assert nodes.key.hex() not in str(refused.value)
    assert not [path for path in nodes.run.iterdir() if path.name.startswith(".tensafe")]
    return str(refused.value)


def test_nodes_that_share_folder_lock_and_key_are_accepted(nodes: Nodes) -> None:
    assert nodes.check() == digest_of(nodes.key, "salt") != digest_of(nodes.key, "other salt")
    assert [path.name for path in nodes.run.iterdir()] == [".run.lock"]


def test_cluster_without_a_node_of_the_size_is_refused(nodes: Nodes) -> None:
    with pytest.raises(RunRefused, match="no node of the Ray cluster offers the CPUs and GPUs of one worker"):
        check_nodes([], [nodes.run], "salt")


def test_node_with_another_folder_of_that_name_is_refused(nodes: Nodes) -> None:
    aside = nodes.base / "aside"

    def swap() -> None:
        nodes.run.rename(aside)
        nodes.run.mkdir()

    def swap_back() -> None:
        shutil.rmtree(nodes.run)
        aside.rename(nodes.run)

    nodes.before_second, nodes.after_second = swap, swap_back
    assert f"node 10.0.0.2 of the Ray cluster does not share {nodes.run} with this machine" in refusal(nodes)


def test_node_with_a_copy_of_the_folder_is_refused(nodes: Nodes) -> None:
    """It reads the driver's file in its copy, but what it writes there does not reach the driver."""
    aside = nodes.base / "aside"

    def swap() -> None:
        shutil.copytree(nodes.run, aside)
        nodes.run.rename(nodes.base / "original")
        aside.rename(nodes.run)

    def swap_back() -> None:
        shutil.rmtree(nodes.run)
        (nodes.base / "original").rename(nodes.run)

    nodes.before_second, nodes.after_second = swap, swap_back
    assert "10.0.0.2 of the Ray cluster does not share" in refusal(nodes)


def test_node_that_does_not_see_the_lock_is_refused(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "is_run_locked", lambda directory: False)
    assert "node 10.0.0.1 of the Ray cluster does not see the lock" in refusal(nodes)

    def no_locks(directory: Path) -> bool:
        raise OSError("No locks available")

    monkeypatch.setattr(checks, "is_run_locked", no_locks)
    assert "does not see the lock" in refusal(nodes)


def test_node_with_another_key_is_refused(nodes: Nodes) -> None:
    nodes.before_second = lambda: nodes.key_file.write_bytes(secrets.token_bytes(32))
    assert "the nodes 10.0.0.1 and 10.0.0.2 of the Ray cluster have different job keys" in refusal(nodes)


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda nodes: nodes.patch.delenv(KEY_FILE_VARIABLE), "TENSAFE_JOB_KEY_FILE is not set"),
        (lambda nodes: nodes.key_file.unlink(), "cannot be read (No such file or directory)"),
        (lambda nodes: nodes.key_file.chmod(0o644), "can be read by other users (mode 644)"),
        (lambda nodes: nodes.key_file.write_bytes(b"short"), "holds 5 bytes, and a key has 32"),
        (lambda nodes: nodes.key_file.write_bytes(bytes(32)), "holds a key that is not random"),
    ],
    ids=["not set", "missing", "readable by others", "short", "zeros"],
)
def test_node_without_a_usable_key_is_refused(nodes: Nodes, spoil: Callable[[Nodes], Any], sentence: str) -> None:
    nodes.before_second = lambda: spoil(nodes)
    message = refusal(nodes)
    assert "node 10.0.0.2" in message
    assert sentence in message
    assert "set TENSAFE_JOB_KEY_FILE to its path before `ray start`" in message


def test_node_that_cannot_answer_is_refused(nodes: Nodes) -> None:
    nodes.second_replies = ModuleNotFoundError("No module named 'tensorguard'")
    assert "node 10.0.0.2 of the Ray cluster cannot take part (ModuleNotFoundError)" in refusal(nodes)
