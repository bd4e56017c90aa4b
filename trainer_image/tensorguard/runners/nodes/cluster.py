"""Joins the Ray cluster at an address, lists its nodes, and calls small tasks on them.

A cluster whose only node with CPUs is this machine is used like one that the run starts itself. In any other cluster,
workers may run on machines that do not have this machine's files (`has_other_nodes`). Ray is imported inside the
functions, since a run without an address does not need it this early.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tensorguard.runners.background import run_in_background
from tensorguard.runners.preflight import RunRefused
from tensorguard.runners.worker_group import configure_ray, init_ray

ADDRESS_VARIABLE = "RAY_ADDRESS"
"""Ray's environment variable: the cluster to join where no address is given."""
NEW_CLUSTER = "local"
"""The address for which a run starts a Ray cluster of its own, as in `ray.init`."""
_ANSWER_SECONDS = 120.0
"""How long a node may take to start a process and answer."""
_CONNECT_SECONDS = 10.0
_WANTS_TOKEN = (
    "if it was started with RAY_AUTH_MODE=token, set that variable here too, and the token as on its head; otherwise "
)
"""What may fix a failed connection: Ray does not tell a missing token from a server that is not Ray's."""
_NO_CLIENT = (
    "a Ray client (ray://) runs outside of the cluster, so it does not share the run's folder with the workers; start "
    "the run on a node of the cluster, with `tensafe run --address auto` or ray.init(address='auto')"
)


@dataclass(frozen=True)
class Node:
    """A node of the joined cluster.

    Attributes:
        id: Ray's id of it.
        address: its IP address.
    """

    id: str
    address: str


@contextmanager
def joined_cluster(address: str | None, stopped: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Join the Ray cluster at `address`, or else the one that RAY_ADDRESS names, for the with block.

    Does nothing without an address, for "local", and in a process that has joined a cluster already.

    Args:
        address: of the cluster.
        stopped: whether joining is to be given up.

    Raises:
        RunRefused: the cluster cannot be joined, or the connection is one of a Ray client.
        KeyboardInterrupt: `stopped` while joining.
    """
    wanted = address or os.environ.get(ADDRESS_VARIABLE) or NEW_CLUSTER
    if is_joined():
        _refuse_client()
        yield
        return
    if wanted == NEW_CLUSTER:
        yield
        return
    name = "--address" if address else ADDRESS_VARIABLE
    if wanted.startswith("ray://"):
        raise RunRefused("", f"{name} is {wanted}: {_NO_CLIENT}")
    _join(name, wanted, stopped)
    import ray

    try:
        yield
    finally:
        ray.shutdown()


def is_joined() -> bool:
    """Whether this process has joined a Ray cluster, or has started one."""
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


def has_other_nodes() -> bool:
    """Whether workers may run on another node than this one, in the cluster that this process has joined."""
    if not is_joined():
        return False
    import ray

    return {node.id for node in nodes_with({"CPU": 0.0})} != {ray.get_runtime_context().get_node_id()}


def nodes_with(resources: dict[str, float]) -> list[Node]:
    """The nodes that offer all of `resources`, and some CPU."""
    import ray

    return [
        Node(node["NodeID"], node["NodeManagerAddress"])
        for node in ray.nodes()
        if node["Alive"]
        and node["Resources"].get("CPU")
        and all(node["Resources"].get(name, 0.0) >= amount for name, amount in resources.items())
    ]


def call_on_nodes(nodes: Sequence[Node], task: Callable[..., Any], *arguments: Any) -> list[Any]:
    """The result of `task` on each of the nodes, in order; an exception where one raised or did not answer."""
    import ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    remote = ray.remote(num_cpus=0, max_retries=0)(task)
    strategies = [NodeAffinitySchedulingStrategy(node.id, soft=False) for node in nodes]
    pending = [remote.options(scheduling_strategy=strategy).remote(*arguments) for strategy in strategies]
    deadline, results = time.monotonic() + _ANSWER_SECONDS, []
    for each in pending:
        try:
            results.append(ray.get(each, timeout=max(0.0, deadline - time.monotonic())))
        except (RayError, TimeoutError) as error:
            results.append(getattr(error, "cause", None) or error)
    return results


def _join(name: str, address: str, stopped: Callable[[], bool]) -> None:
    """Join on a background thread: on the main one, Ray would replace the handler of SIGTERM."""
    configure_ray()
    failures: list[tuple[Exception, str]] = []
    ended = False
    deadline = time.monotonic() + _ANSWER_SECONDS

    def join() -> None:
        nonlocal ended
        fix = ""
        try:
            _connect(address)
            fix = _WANTS_TOKEN
            init_ray(address=address)
        except Exception as error:
            failures.append((error, fix))
        ended = True

    def check() -> None:
        if ended:
            return
        if stopped():
            raise KeyboardInterrupt
        if time.monotonic() > deadline:
            raise RunRefused(
                "",
                f"{name} is {address}, and the Ray cluster at it does not answer: start it again, or train on this "
                f"machine alone with --address {NEW_CLUSTER}",
            )

    run_in_background(join, meanwhile=check)
    if failures:
        error, fix = failures[0]
        raise RunRefused(
            "",
            f"{name} is {address}, and there is no Ray cluster to join at it ({type(error).__name__}); {fix}start one "
            "with `ray start` or `ray up`, run this on one of its nodes with the address auto, or train on this "
            f"machine alone with --address {NEW_CLUSTER}",
        ) from error


def _connect(address: str) -> None:
    """Raise OSError if nothing listens at an address of the form HOST:PORT: Ray would try for a quarter of an hour."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()


def _refuse_client() -> None:
    from ray.util import client

    if client.ray.is_connected():
        raise RunRefused("", f"this process has joined Ray as a client: {_NO_CLIENT}")
