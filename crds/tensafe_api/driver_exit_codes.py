"""The exit codes of the trainer's driver in a cluster, from which the operator learns why it ended."""

from __future__ import annotations

from tensafe_api.reasons import Reason

_FIRST = 64
_REASONS = (
    Reason.WORKER_LOST,
    Reason.NO_PROGRESS,
    Reason.INVALID_MANIFEST,
    Reason.CONFIGURATION_CHANGED,
    Reason.GRID_OVERFLOW,
    Reason.RESOURCES_MISSING,
    Reason.DATASET_UNREADABLE,
    Reason.DATASET_UNSUITABLE,
    Reason.MODEL_UNAVAILABLE,
    Reason.MODEL_UNSUPPORTED,
    Reason.CHECKPOINT_UNWRITABLE,
    Reason.CHECKPOINT_CORRUPT,
    Reason.LEDGER_CORRUPT,
    Reason.LEDGER_LOCKED,
    Reason.LEDGER_UNREACHABLE,
    Reason.AGGREGATION_FAILED,
    Reason.PRIVACY_BUDGET_EXCEEDED,
    Reason.INTERNAL_ERROR,
    Reason.SIGNATURE_INVALID,
    Reason.DECRYPTION_FAILED,
    Reason.DISK_FULL,
)
"""Reasons with their own exit code. New ones are added at the end, so that codes never change."""


def driver_exit_code(reason: Reason) -> int:
    """The exit code for a reason. Codes start at 64, in the order of `_REASONS`. Other reasons have 1."""
    return _FIRST + _REASONS.index(reason) if reason in _REASONS else 1


def reason_for_exit_code(code: int) -> Reason | None:
    """The reason of an exit code of the driver; None for a code without one."""
    number = code - _FIRST
    return _REASONS[number] if 0 <= number < len(_REASONS) else None
