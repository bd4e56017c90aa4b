"""Whether the rules that protect ledgers are in force, and the CRDs keep every field.

The rules of the CRD see no user, and the admission policies do not see whether a charge falls. Without one of them, a
client that may write ledgers could lower what was spent, or delete the record of it. So nothing is begun without them,
and running jobs say so.

With the CRDs of an earlier release, the API server drops fields, and ε would be computed from the rest. So no job is
changed at all then, not even its status: a write would delete the fields for good. An Event of the job says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Gauge

from tensafe_api.admission_policy import BINDING_KIND, POLICY_KIND, admission_policies, is_enforced
from tensafe_api.crd import LEDGERS
from tensafe_api.resources.job import GROUP
from tensafe_operator.names import METRICS_PREFIX
from tensafe_operator.runtime.api_client import ApiClient
from tensafe_operator.runtime.api_errors import ApiError, ApiUnavailable
from tensafe_operator.served_fields import FieldsDropped, dropped_fields, served_definitions, why_dropped
from tensafe_operator.served_rules import lost_rules

PRESENT_SECONDS, ABSENT_SECONDS = 60.0, 10.0
"""For how long an answer is used: a policy that is missing is looked for again soon."""
SETTLED_SECONDS = 5.0
"""How long each API server may take until it serves a CRD that was changed."""
_SHOWN = 3
_READS_AGAIN = "the CRDs of the cluster were older than the operator until now, and everything is read again"
log = logging.getLogger(__name__)


def guard_gauge(registry: CollectorRegistry) -> Gauge:
    """The metric of the guard, registered in `registry`."""
    text = "1 while the rules that protect ledgers are in force, and the CRDs keep every field."
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
        self._present, self._checked, self._keep_for = True, float("-inf"), 0.0
        self._why_dropped, self._reads_again = "", False
        self._checking = asyncio.Lock()

    async def is_present(self, *, within: float | None = None) -> bool:
        """Whether the admission policies and the rules of the CRD of ledgers are in force.

        Args:
            within: how many seconds old the answer may be. None: PRESENT_SECONDS, or ABSENT_SECONDS if they are not.

        Raises:
            FieldsDropped: if the CRDs are those of an earlier release, or cannot be read; and from then on, because
                what was read meanwhile may lack fields (see `wait_until_crds_are_back`).
            ApiUnavailable: if the API server does not answer.
        """
        async with self._checking:  # of many jobs, one asks
            age = self._clock() - self._checked
            if age >= (self._keep_for if within is None else within):
                await self.check()
        if self._why_dropped:
            raise FieldsDropped.because(self._why_dropped)
        if self._reads_again:
            raise FieldsDropped(_READS_AGAIN)
        return self._present

    async def wait_until_crds_are_back(self) -> None:
        """Return once the CRDs have lacked fields, and have had all of them for SETTLED_SECONDS.

        Then everything has to be read again: what was cached meanwhile may lack fields, and the cache replaces only
        objects that have changed.
        """
        were_back = False
        while True:
            await asyncio.sleep(SETTLED_SECONDS)
            if not self._reads_again:
                continue
            with contextlib.suppress(ApiUnavailable):
                async with self._checking:
                    await self.check()
                if were_back and not self._why_dropped:
                    return
                were_back = not self._why_dropped

    async def check(self) -> None:
        """Read the policies and the CRDs from the API server."""
        missing, before = await missing_policies(self._api), self._why_dropped
        self._why_dropped, lost = await why_crds_differ(self._api)
        self._reads_again |= bool(self._why_dropped)
        self._present = not missing and not lost
        well = self._present and not self._why_dropped
        self._gauge.set(well)
        if self._why_dropped and self._why_dropped != before:
            log.error("no job is changed: %s: apply crds/ of this release, or upgrade the chart", self._why_dropped)
        if missing:
            log.error(
                "no job is started: the ValidatingAdmissionPolicy %s, its binding, or the right to read them is "
                "missing, or the policy was changed: apply the file with 'guard' in its name in crds/, or upgrade the "
                "chart",
                ", ".join(missing),
            )
        if lost:
            log.error("no job is started: %s: apply crds/ of this release, or upgrade the chart", lost)
        self._checked = self._clock()
        self._keep_for = PRESENT_SECONDS if well else ABSENT_SECONDS


async def why_crds_differ(api: ApiClient) -> tuple[str, str]:
    """Why the API server may drop fields of jobs or ledgers, and why it may accept a falsified ledger. Empty texts: it
    does not.
    """
    try:
        found = await served_definitions(api)
    except ApiError as error:
        return f"the CRDs of the cluster cannot be read, which may be older than the operator ({error})", ""
    dropped, ledgers = dropped_fields(found), found.get(LEDGERS.plural)
    lost = lost_rules(ledgers) if ledgers is not None else []
    lacks = f"the CRD {LEDGERS.plural}.{GROUP} lacks rules of this release, or is older: {_shown(lost)}"
    return why_dropped(_shown(dropped)) if dropped else "", lacks if lost else ""


def _shown(paths: Sequence[str]) -> str:
    rest = len(paths) - _SHOWN
    return ", ".join(paths[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


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
