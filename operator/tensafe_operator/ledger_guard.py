"""Whether the admission policies that protect ledgers are in force.

The rules of the CRD see no user. Without the policies, any client that may write ledgers could lower what was spent, or
delete the record of it. So nothing is begun without them, and running jobs say so.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Gauge

from tensafe_api.admission_policy import BINDING_KIND, POLICY_KIND, admission_policies, is_enforced
from tensafe_operator.names import METRICS_PREFIX
from tensafe_operator.runtime.api_client import ApiClient, ApiError

PRESENT_SECONDS, ABSENT_SECONDS = 300.0, 10.0
"""For how long an answer is used: a policy that is missing is looked for again soon."""
log = logging.getLogger(__name__)


def guard_gauge(registry: CollectorRegistry) -> Gauge:
    """The metric of the guard, registered in `registry`."""
    text = "1 while the admission policies that protect ledgers are in force."
    return Gauge("guard_present", text, namespace=METRICS_PREFIX, registry=registry)


class LedgerGuard:
    """The answer of the last check, which is repeated when it is too old.

    Args:
        registry: gets the metric `tensafe_guard_present`.
        clock: a time in seconds that never goes back.
    """

    def __init__(
        self, api: ApiClient, registry: CollectorRegistry, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._api, self._clock = api, clock
        self._gauge = guard_gauge(registry)
        self._present, self._until = True, float("-inf")
        self._checking = asyncio.Lock()

    async def is_present(self) -> bool:
        """Whether the policies are in force.

        Raises:
            ApiUnavailable: if the API server does not answer.
        """
        async with self._checking:  # of many jobs, one asks
            if self._clock() >= self._until:
                await self.check()
        return self._present

    async def check(self) -> None:
        """Read the policies from the API server."""
        missing = await missing_policies(self._api)
        self._present = not missing
        self._gauge.set(self._present)
        if missing:
            log.error(
                "no job is started: the ValidatingAdmissionPolicy %s, its binding, or the right to read them is "
                "missing, or the policy was changed: apply the file with 'guard' in its name in crds/, or upgrade the "
                "chart",
                ", ".join(missing),
            )
        self._until = self._clock() + (PRESENT_SECONDS if self._present else ABSENT_SECONDS)


async def missing_policies(api: ApiClient) -> list[str]:
    """Names of the admission policies that are not in force, or that this client may not read."""
    policies = sorted({each["metadata"]["name"] for each in admission_policies()})
    return [name for name in policies if not await _is_enforced(api, name)]


async def _is_enforced(api: ApiClient, name: str) -> bool:
    try:
        policy, binding = [await api.get(kind, None, name) for kind in (POLICY_KIND, BINDING_KIND)]
    except ApiError:
        return False
    return policy is not None and binding is not None and is_enforced(policy, binding)
