"""Read the parts of an API object that several policies need."""

from __future__ import annotations

from tensafe_api.reasons import Reason
from tensafe_api.resources.ledger import LedgerStatus, PrivacyLedgerSpec
from tensafe_api.timestamps import parse_time
from tensafe_operator.plan.observed import Object

IN_CREATION = ("ContainerCreating", "PodInitializing")
"""What a kubelet reports while it pulls an image, and before the init containers have ended."""
WAITS_FOR_HEAD = "wait-gcs-ready"
"""KubeRay's init container in workers, which ends when it has reached the head."""
_UNREADABLE = "unreadable"
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


def started_waiting_for_head(pod: Object) -> float | None:
    """Return since when a worker waits until it reaches the head, in seconds since the epoch; None if it does not."""
    containers = (pod.get("status") or {}).get("initContainerStatuses") or ()
    states = ((each.get("state") or {}).get("running") for each in containers if each.get("name") == WAITS_FOR_HEAD)
    return next((parse_time(running.get("startedAt")) for running in states if running), None)


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


def is_partial(record: LedgerStatus | None) -> bool:
    """Return whether a record holds only the charges of a ledger, because another release wrote the rest."""
    return record is not None and record.head == _UNREADABLE


def parse_ledger_status(ledger: Object | None) -> LedgerStatus | None:
    """Return what a ledger records; None before the first acquisition. If the record cannot be read as a whole, return
    its charges alone, because those must still be counted.
    """
    status = ledger.get("status") if ledger else None
    if not status:
        return None
    try:
        return LedgerStatus.model_validate(status, by_alias=True, by_name=False)
    except ValueError:
        known = ("attempt", "steps", "incarnation")
        charges = [{name: charge[name] for name in known} | {"podUID": _UNREADABLE} for charge in status["charges"]]
        counts = {name: status[name] for name in ("chargedThrough", "length")}
        counts["attempt"] = max(charge["attempt"] for charge in charges)
        return LedgerStatus.model_validate(
            {**counts, "charges": charges, "head": _UNREADABLE}, by_alias=True, by_name=False
        )
