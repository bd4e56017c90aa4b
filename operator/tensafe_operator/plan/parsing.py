"""What an object of the API server says, in the words of the plan."""

from __future__ import annotations

from tensafe_api.reasons import Reason
from tensafe_api.resources.ledger import LedgerStatus, PrivacyLedgerSpec
from tensafe_operator.plan.observed import Object

_UNREADABLE = "unreadable"
_ENDED = (Reason.COMPLETED.value, Reason.BUDGET_EXHAUSTED.value)


def terminal(ray_job: Object) -> bool:
    """Whether KubeRay ends it by itself."""
    status = ray_job.get("status") or {}
    ended = status.get("jobStatus") in ("SUCCEEDED", "FAILED", "STOPPED")
    return ended or status.get("jobDeploymentStatus") in ("Complete", "Failed", "ValidationFailed")


def has_ended(record: LedgerStatus) -> bool:
    """Whether the job's last word is recorded."""
    return record.outcome in _ENDED and any(release.final for release in record.releases)


def ledger_spec(made: Object | None) -> PrivacyLedgerSpec | None:
    """What a ledger was opened with; None where another release has written what this one cannot read."""
    try:
        return PrivacyLedgerSpec.model_validate(made["spec"], by_alias=True, by_name=False) if made else None
    except ValueError:
        return None


def ledger_status(made: Object | None) -> LedgerStatus | None:
    """What a ledger records; None before the first claim. Of a record that cannot be read whole, what was charged: that
    must go on being counted.
    """
    status = made.get("status") if made else None
    if not status:
        return None
    try:
        return LedgerStatus.model_validate(status, by_alias=True, by_name=False)
    except ValueError:
        told = {name: status[name] for name in ("attempt", "chargedThrough", "length")}
        charges = [{**charge, "podUID": _UNREADABLE} for charge in status["charges"]]
        return LedgerStatus.model_validate(
            {**told, "charges": charges, "head": _UNREADABLE}, by_alias=True, by_name=False
        )
