"""`python -m tensafe_operator.installation`: what `helm test` runs in a pod of the operator's image.

It checks, in this order: the CRDs are served, the CRDs and the admission policies that protect ledgers are those of
this release or newer, the operator answers that it is healthy, and the API server would accept a job. It creates
nothing: the job is a dry run. Each check prints one line. The first line that starts with FAILED names what is
wrong and the fix, and the exit code is then 1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import aiohttp

from tensafe_api.resources.job import KIND
from tensafe_api.resources.ledger import LEDGER_KIND
from tensafe_api.resources.profile import PROFILE_KIND
from tensafe_operator import names
from tensafe_operator.gate import installation_problem
from tensafe_operator.kinds import KINDS
from tensafe_operator.runtime.api_client import ApiClient
from tensafe_operator.runtime.api_errors import ApiError, ApiUnavailable
from tensafe_operator.runtime.connection import connect
from tensafe_operator.runtime.errors import ConfigurationError
from tensafe_operator.runtime.objects import Manifest

WAIT_SECONDS = 60.0
"""For how long an operator that is not healthy yet is asked again."""
_TIMEOUT = aiohttp.ClientTimeout(total=5)


@dataclass(frozen=True)
class Result:
    """What one check has found."""

    passed: bool
    text: str

    def __str__(self) -> str:
        return self.text if self.passed else f"FAILED: {self.text}"


async def check(
    api: ApiClient, health: str, job: Manifest, limits: str = "", wait: float = WAIT_SECONDS
) -> AsyncIterator[Result]:
    """Run the checks one after the other.

    Args:
        api: client of the account of the test.
        health: URL of the operator's health. A name with several addresses stands for several replicas.
        job: the job that the API server is asked to accept.
        limits: name of the admission policy of the chart's `limits`, which may refuse the job; empty without limits.
        wait: for how many seconds an operator that is not healthy yet is asked again.

    Raises:
        ApiUnavailable: if the API server does not answer.
    """
    served = True
    for kind in (KIND, LEDGER_KIND, PROFILE_KIND):
        known = await api.knows(kind)
        served &= known
        fix = "apply the files in crds/, or set the chart's value `crds.enabled`"
        yield Result(known, f"the CRD of {kind} is served" if known else f"the CRD of {kind} is not served: {fix}")
    if not await api.knows("RayJob"):
        yield Result(True, "warning: KubeRay's RayJob is not served, so jobs wait (KubeRayMissing): install KubeRay")
    problem = await installation_problem(api)
    fix = "apply crds/ of this release, or upgrade the chart. Until then no job is changed"
    yield Result(
        not problem, f"{problem}: {fix}" if problem else "the CRDs and the policies that protect ledgers are in force"
    )
    yield await _check_health(health, wait)
    if served:
        yield await _check_job(api, job, limits)


async def _check_health(url: str, wait: float) -> Result:
    """Ask each replica for its health, until all are healthy or `wait` seconds have passed."""
    host, port = urlsplit(url).hostname or "", urlsplit(url).port
    deadline = asyncio.get_running_loop().time() + wait
    while True:
        problem, count = "", 0
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
            addresses = sorted({str(address[0]) for *_, address in found})
            count = len(addresses)
            problem = "; ".join(filter(None, [await _unhealthy(url, host, each) for each in addresses]))
        except OSError as error:
            problem = f"no replica is ready at {host} ({error.strerror or error})"
        if not problem:
            return Result(True, f"the operator is healthy ({count} ready)")
        if asyncio.get_running_loop().time() > deadline:
            fix = "see `kubectl describe` and `kubectl logs` of its pods"
            return Result(False, f"the operator is not healthy: {problem}: {fix}")
        await asyncio.sleep(1)


async def _unhealthy(url: str, host: str, address: str) -> str:
    """What one replica reports; empty if it is healthy.

    A certificate is not checked, as by the kubelet's probes: it is for the name that Prometheus uses, and no secret is
    sent.
    """
    shown = f"[{address}]" if ":" in address else address
    try:
        async with (
            aiohttp.ClientSession(timeout=_TIMEOUT) as session,
            session.get(url.replace(host, shown, 1), ssl=False) as answer,
        ):
            return "" if answer.status == 200 else f"{shown} reports: {await answer.text()}"
    except (TimeoutError, aiohttp.ClientError) as error:
        return f"{shown} does not answer ({type(error).__name__})"


async def _check_job(api: ApiClient, job: Manifest, limits: str) -> Result:
    """Ask whether the API server would accept the job."""
    name = job["metadata"].get("name", "")
    asked = {**job, "metadata": {"generateName": "helm-test-", "namespace": job["metadata"]["namespace"]}}
    try:
        await api.create(asked, dry_run=True)
    except ApiError as error:
        if limits and f"'{limits}'" in str(error):
            return Result(True, f"the job {name} is beyond the chart's `limits`, as they are set: {error}")
        return Result(False, f"the API server refuses the job {name}: {error}")
    return Result(True, f"the API server accepts the job {name} (dry run)")


async def _run(health: str, job: Manifest, limits: str, wait: float) -> int:
    api = ApiClient(await connect(), KINDS.resources, names.OPERATOR)
    passed = True
    try:
        async for result in check(api, health, job, limits, wait):
            passed &= result.passed
            print(result, flush=True)
    except ApiUnavailable as error:
        print(Result(False, f"{error}: repeat the test"), flush=True)
        passed = False
    finally:
        await api.close()
    return 0 if passed else 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Check an installation.

    Returns:
        The exit code: 0 if all checks passed, else 1.
    """
    parser = argparse.ArgumentParser(
        prog="python -m tensafe_operator.installation",
        description="Check the installation of TenSafe in a cluster. `helm test` runs it in a pod. Nothing is created.",
    )
    parser.add_argument("--health", required=True, help="URL of the operator's health")
    parser.add_argument("--namespace", required=True, help="namespace in which the job would be created")
    parser.add_argument("--job", required=True, type=json.loads, help="a job, as JSON")
    parser.add_argument("--limits", default="", help="name of the admission policy that may refuse the job")
    parser.add_argument("--wait", type=float, default=WAIT_SECONDS, help="seconds for the operator to become healthy")
    given = parser.parse_args(arguments)
    job = {**given.job, "metadata": {**given.job["metadata"], "namespace": given.namespace}}
    try:
        return asyncio.run(_run(given.health, job, given.limits, given.wait))
    except ConfigurationError as error:
        print(Result(False, str(error)))
        return 1


if __name__ == "__main__":
    sys.exit(main())
