"""The writes of the fake trainer as a function call, for tests that are not asynchronous."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.support.fakes.trainer import FakeRank0
from tests.support.ledger_objects import Pod
from tests.support.programs.api_server import connect


def charge_through(pod: Pod, namespace: str, ledger: str, steps: int, **more: Any) -> None:
    """Charge a ledger up to `steps` steps in all, with the token of the pod that acquired it or acquires it now.

    Args:
        more: further fields of the ledger's status, such as `outcome`.
    """

    async def write() -> None:
        async with connect(pod.kubeconfig) as server:
            await FakeRank0(server, namespace, ledger, pod.uid, clock=None).charge_through(steps, **more)

    asyncio.run(write())
