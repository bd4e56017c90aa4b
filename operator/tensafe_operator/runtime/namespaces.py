"""Which of the operator's namespaces it can serve now.

A namespace of the list may be deleted, and with it the operator's rights in it. The API server then forbids every list
there. The other namespaces are served, and the missing one is taken up when the operator may list in it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection

from tensafe_operator.runtime.api_client import ApiClient
from tensafe_operator.runtime.api_errors import FORBIDDEN, ApiError, ApiUnavailable
from tensafe_operator.runtime.metrics import OperatorMetrics
from tensafe_operator.runtime.objects import Kinds

POLL_SECONDS = 10.0
log = logging.getLogger(__name__)


async def served_namespaces(api: ApiClient, kinds: Kinds, namespaces: Collection[str]) -> frozenset[str]:
    """Those of the namespaces in which the operator may list parents now.

    Raises:
        ApiError: of status FORBIDDEN if it may list in none of them, and of any other status.
        ApiUnavailable: if the API server does not answer.
    """
    served, refusal = set(), None
    for namespace in namespaces:
        try:
            await api.may_list(kinds.parent, namespace)
            served.add(namespace)
        except ApiError as error:
            if error.status != FORBIDDEN:
                raise
            refusal = error
    if refusal is not None and not served:
        raise refusal
    return frozenset(served)


def report_namespaces(metrics: OperatorMetrics, namespaces: Collection[str], served: Collection[str]) -> None:
    """Log the namespaces of the list that are not served, and export for each whether it is."""
    for namespace in namespaces:
        metrics.namespace_served.labels(namespace).set(namespace in served)
        if namespace not in served:
            log.warning("namespace %s is skipped: it does not exist, or the operator may not list in it", namespace)


async def wait_for_other_namespaces(
    api: ApiClient, kinds: Kinds, namespaces: Collection[str], served: Collection[str]
) -> None:
    """Return when the operator can serve other namespaces of the list than `served`.

    Raises ApiError if it can serve none any more.
    """
    while True:
        await asyncio.sleep(POLL_SECONDS)
        with contextlib.suppress(ApiUnavailable):  # the next poll asks again
            if await served_namespaces(api, kinds, namespaces) != served:
                return
