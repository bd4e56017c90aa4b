"""Read the parts of an API object that several policies need."""

from __future__ import annotations

from collections.abc import Iterable

from tensafe_api.reasons import Reason
from tensafe_api.resources.ledger import LedgerStatus, PrivacyLedgerSpec
from tensafe_operator import names
from tensafe_operator.decision.observation import Object, Observed

_FINAL_OUTCOMES = (Reason.COMPLETED.value, Reason.BUDGET_EXHAUSTED.value)


def is_terminal(ray_job: Object) -> bool:
    """Return whether the RayJob has ended: KubeRay then removes its pods without a request from the operator."""
    status = ray_job.get("status") or {}
    ended = status.get("jobStatus") in ("SUCCEEDED", "FAILED", "STOPPED")
    return ended or status.get("jobDeploymentStatus") in ("Complete", "Failed", "ValidationFailed")


def has_ended(pod: Object) -> bool:
    """Return whether all containers of a pod have ended, and it will not run again."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def object_condition(body: Object, kind: str) -> Object:
    """Return a condition of a pod or a job, such as Ready; empty where the object does not have it yet."""
    conditions = (body.get("status") or {}).get("conditions") or ()
    return next((each for each in conditions if each.get("type") == kind), {})


def has_condition(pod: Object, kind: str) -> bool:
    """Return whether a condition of a pod is true."""
    return object_condition(pod, kind).get("status") == "True"


def reason_of_node(pod: Object) -> str | None:
    """Return why a pod has no node, in a word of its scheduler."""
    return object_condition(pod, "PodScheduled").get("reason")


def pods_of_open_attempt(observed: Observed) -> list[Object]:
    """Return the pods of the attempt that is open, also those that have failed."""
    attempts = (observed.job.get("status") or {}).get("attempts") or ()
    numbers = {each["number"] for each in attempts if not each.get("endTime")}
    return [pod for pod in observed.pods if names.attempt_of(pod) in numbers]


def are_all_ready(observed: Observed) -> bool:
    """Return whether all pods of the open attempt are ready: its head and its workers."""
    ready = [pod for pod in pods_of_open_attempt(observed) if has_condition(pod, "Ready")]
    return len(ready) > int(observed.job["spec"]["cluster"]["workers"])


def count_ready_workers(pods: Iterable[Object]) -> int:
    """Return how many worker pods are ready."""
    workers = (pod for pod in pods if (pod["metadata"].get("labels") or {}).get(names.RAY_NODE_TYPE) == "worker")
    return sum(has_condition(pod, "Ready") for pod in workers)


def has_final_outcome(record: LedgerStatus) -> bool:
    """Return whether the ledger records the end of the job: a final outcome and a final checkpoint."""
    return record.outcome in _FINAL_OUTCOMES and any(release.final for release in record.releases)


def parse_ledger_spec(ledger: Object | None) -> PrivacyLedgerSpec | None:
    """Return the values that a ledger was opened with; None without a ledger, or where another release of the operator
    wrote fields that this one cannot read.
    """
    try:
        return PrivacyLedgerSpec.model_validate(ledger["spec"], by_alias=True, by_name=False) if ledger else None
    except ValueError:
        return None


def is_readable(ledger: Object) -> bool:
    """Return whether this release knows all that a ledger records."""
    try:
        parse_ledger_status(ledger)
    except ValueError:
        return False
    return True


def parse_ledger_status(ledger: Object | None) -> LedgerStatus | None:
    """Return what a ledger records; None before the first acquisition.

    Raises:
        ValueError: if another release wrote it, with fields or values that this one does not know.
    """
    status = ledger.get("status") if ledger else None
    return LedgerStatus.model_validate(status, by_alias=True, by_name=False) if status else None
