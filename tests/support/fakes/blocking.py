"""The fakes' writes as ordinary function calls, for tests that are not asynchronous. Each call opens a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.fakes.kuberay import FakeKubeRay
from tests.support.fakes.trainer import FakeRank0
from tests.support.ledger_objects import Pod
from tests.support.programs.api_server import connect


def write_ray_job_status(admin: Path, namespace: str, name: str, status: Mapping[str, Any]) -> None:
    """Merge `status` into a RayJob's status, as KubeRay does.

    Args:
        admin: kubeconfig of a cluster administrator.
    """

    async def write() -> None:
        async with connect(admin) as server:
            await FakeKubeRay(server).write_status(namespace, name, dict(status))

    asyncio.run(write())


def charge_through(pod: Pod, namespace: str, ledger: str, steps: int, **more: Any) -> None:
    """Charge a ledger up to `steps` steps in all, with the token of the pod that acquired it or acquires it now.

    Args:
        more: further fields of the ledger's status, such as `outcome`.
    """

    async def write() -> None:
        async with connect(pod.kubeconfig) as server:
            await FakeRank0(server, namespace, ledger, pod.uid, clock=None).charge_through(steps, **more)

    asyncio.run(write())
