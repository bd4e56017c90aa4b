"""Checks the nodes of a Ray cluster before a run: they share the run's folders and its lock, and have the same key.

In come the nodes that may run a worker and the folders; out comes the digest of the key, or `RunRefused` with the node
and the fix. Nothing is spent, and the files that the check writes are removed.

A folder is shared if a node reads there what the driver has written, and the driver what the node has written. A folder
of the same name on another disk would hold another ledger, so that a restart on another node would charge from zero.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tensorguard.runners.nodes.cluster import Node, call_on_nodes
from tensorguard.runners.nodes.node_files import NodeKeyError, digest_of, read_key
from tensorguard.runners.preflight import RunRefused
from tensorguard.runners.run_folder import is_run_locked, write_owner_only

_PREFIX = ".tensafe-check-"
_SHARE = "mount the same storage on all nodes, under the same path, for the same user, and choose a folder in it"


@dataclass(frozen=True)
class _Answer:
    """What a node found. `wrote` names the folders in which it read the driver's file, and where it wrote its own."""

    wrote: tuple[str, ...]
    sees_lock: bool
    key_digest: str
    key_problem: str


def check_nodes(nodes: Sequence[Node], folders: Sequence[Path], salt: str) -> str:
    """Check that the run can use `nodes`, and return the digest of their key (`node_files.digest_of`).

    Args:
        nodes: those that may run a worker.
        folders: existing folders that must be shared. The first is the run's folder, whose lock this process holds.
        salt: random, for the digest.

    Raises:
        RunRefused: there is no node, or a node does not answer, share the folders, see the lock, or have the key.
    """
    if not nodes:
        raise RunRefused(
            "spec.cluster.worker",
            "no node of the Ray cluster offers the CPUs and GPUs of one worker; lower them, or wait until its nodes "
            "have started (`ray status` lists them)",
        )
    token = secrets.token_hex(16)
    paths = [str(folder.absolute()) for folder in folders]
    try:
        for folder in paths:
            write_owner_only(Path(folder) / f"{_PREFIX}{token}", token.encode())
        answers = call_on_nodes(nodes, look_around, paths, token, salt)
        for node, answer in zip(nodes, answers, strict=True):
            _check(node, answer, paths, token)
    finally:
        for folder in paths:
            for written in Path(folder).glob(f"{_PREFIX}{token}*"):
                written.unlink(missing_ok=True)
    return _same_key(nodes, answers)


def look_around(folders: list[str], token: str, salt: str) -> _Answer:
    """On a node: what it finds. `token` is the content of the driver's files, which have it in their names."""
    import ray

    wrote, sees_lock, digest, problem = [], False, "", ""
    node = ray.get_runtime_context().get_node_id()
    for folder in folders:
        try:
            found = (Path(folder) / f"{_PREFIX}{token}").read_text()
            if found == token:
                write_owner_only(Path(folder) / f"{_PREFIX}{token}-{node}", f"{token}{node}".encode())
                wrote.append(folder)
        except OSError:
            continue  # the folder does not exist here, or is another one, or belongs to another user
    if folders[0] in wrote:
        try:
            sees_lock = is_run_locked(Path(folders[0]))
        except OSError:
            sees_lock = False  # the file system has no locks
    try:
        digest = digest_of(read_key(), salt)
    except NodeKeyError as error:
        problem = str(error)
    return _Answer(tuple(wrote), sees_lock, digest, problem)


def _check(node: Node, answer: _Answer | Exception, folders: list[str], token: str) -> None:
    name = f"node {node.address} of the Ray cluster"
    if isinstance(answer, Exception):
        raise RunRefused(
            "",
            f"{name} cannot take part ({type(answer).__name__}); install the same version of tensafe there, and look "
            "at `ray status`",
        ) from answer
    for folder in folders:
        if folder not in answer.wrote or not _was_written(
            Path(folder) / f"{_PREFIX}{token}-{node.id}", token + node.id
        ):
            raise RunRefused("", f"{name} does not share {folder} with this machine: {_SHARE} with --output-dir")
    if not answer.sees_lock:
        raise RunRefused(
            "",
            f"{name} does not see the lock that this machine holds in {folders[0]}, so two runs could write one "
            "ledger: use storage with locks for all clients, such as NFS 4 without the option nolock",
        )
    if answer.key_problem:
        raise RunRefused("", f"{name}: {answer.key_problem}")


def _was_written(path: Path, content: str) -> bool:
    try:
        list(path.parent.iterdir())  # an NFS client may remember that the file did not exist
        return path.read_text() == content
    except OSError:
        return False


def _same_key(nodes: Sequence[Node], answers: Sequence[_Answer]) -> str:
    first = answers[0].key_digest
    for node, answer in zip(nodes, answers, strict=True):
        if answer.key_digest != first:
            raise RunRefused(
                "",
                f"the nodes {nodes[0].address} and {node.address} of the Ray cluster have different job keys; put the "
                "same key file on each node",
            )
    return first
