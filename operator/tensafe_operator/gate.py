"""The gate: no job is changed while the admission policies or the CRDs of this release are missing.

The rules of the CRD see no user, and the admission policies do not see whether a charge falls. Without one of them, a
client that may write ledgers could lower what was spent. With older CRDs, the API server drops fields, and ε would be
computed from the rest. All of them have one version number, `tensafe.io/guard-version`, which rises with each change.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from prometheus_client import CollectorRegistry, Gauge

from tensafe_api.resources.job import GROUP
from tensafe_api.schema.admission_policy import GUARD_VERSION, admission_policies, guard_version
from tensafe_api.schema.crd import DEFINITION_KIND, JOBS, LEDGERS
from tensafe_operator.names import METRICS_PREFIX
from tensafe_operator.runtime.api_client import ApiClient
from tensafe_operator.runtime.api_errors import ApiError, ApiUnavailable

OPEN_SECONDS, CLOSED_SECONDS = 60.0, 10.0
"""Interval of the checks."""
log = logging.getLogger(__name__)


async def installation_problem(api: ApiClient) -> str:
    """Which policy or CRD is missing, or older than this operator; empty if none is. A newer one is trusted.

    Raises:
        ApiUnavailable: if the API server does not answer.
    """
    wanted = [(DEFINITION_KIND, f"{kind.plural}.{GROUP}") for kind in (JOBS, LEDGERS)]
    wanted += [(each["kind"], each["metadata"]["name"]) for each in admission_policies()]
    for kind, name in wanted:
        try:
            found = await api.get(kind, None, name)
        except ApiError as error:
            return f"{kind} {name} cannot be read ({error})"
        if found is None:
            return f"{kind} {name} is missing"
        if (version := guard_version(found)) < GUARD_VERSION:
            return f"{kind} {name} has version {version}, and this operator needs {GUARD_VERSION}"
    return ""


def guard_gauge(registry: CollectorRegistry) -> Gauge:
    """The metric of the gate, registered in `registry`."""
    text = "0 where the leader has found a policy or CRD that protects ledgers missing, or older than this release."
    return Gauge("guard_present", text, namespace=METRICS_PREFIX, registry=registry)


class Gate:
    """What the last check has found.

    Args:
        registry: gets the metric `tensafe_guard_present`.

    Attributes:
        problem: what is wrong, in one sentence; empty: the gate is open.
    """

    def __init__(self, api: ApiClient, registry: CollectorRegistry) -> None:
        self._api, self._gauge = api, guard_gauge(registry)
        self._gauge.set(1)  # a process that does not lead has checked nothing
        self.problem = ""

    async def check(self) -> None:
        """Read the policies and the CRDs from the API server."""
        found = await installation_problem(self._api)
        if found and found != self.problem:
            log.error("no job is changed: %s: apply crds/ of this release, or upgrade the chart", found)
        self.problem = found
        self._gauge.set(not found)

    async def wait_until_opened(self) -> None:
        """Check from time to time, and return once the gate was closed and is open again.

        Then everything has to be read again: what was cached meanwhile may lack fields.
        """
        was_closed = bool(self.problem)
        while not was_closed or self.problem:
            await asyncio.sleep(CLOSED_SECONDS if self.problem else OPEN_SECONDS)
            with contextlib.suppress(ApiUnavailable):
                await self.check()
            was_closed |= bool(self.problem)
