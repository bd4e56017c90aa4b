"""The contract that the operator, the trainer and the command line share: resources, plans and privacy figures.

A manifest comes in; a validated job, its training plan and the ε of its steps go out:

    from tensafe_api import load_manifest, resolve_job

    job, plan = resolve_job(load_manifest("job.yaml"))
    print(plan.mechanism.noise_multiplier, plan.epsilon(plan.steps))

The names in `__all__` are the public surface. Each is imported when it is first used: a program that only needs the
reasons of a status must not wait for dp-accounting and SciPy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensafe_api.manifest.text import dump_manifest as dump_manifest
    from tensafe_api.manifest.text import load_manifest as load_manifest
    from tensafe_api.manifest.validation import ManifestError as ManifestError
    from tensafe_api.manifest.validation import Problem as Problem
    from tensafe_api.manifest.validation import parse_job as parse_job
    from tensafe_api.reasons import ConditionType as ConditionType
    from tensafe_api.reasons import EventReason as EventReason
    from tensafe_api.reasons import Phase as Phase
    from tensafe_api.reasons import Reason as Reason
    from tensafe_api.resolve import Claim as Claim
    from tensafe_api.resolve import Plan as Plan
    from tensafe_api.resolve import resolve_job as resolve_job
    from tensafe_api.resources.job import API_VERSION as API_VERSION
    from tensafe_api.resources.job import TenSafeTrainingJob as TenSafeTrainingJob
    from tensafe_api.resources.ledger import PrivacyLedger as PrivacyLedger
    from tensafe_api.resources.status import Status as Status
    from tensafe_api.statement.contents import recompute_epsilon as recompute_epsilon

_MODULES = {
    "manifest.text": ("dump_manifest", "load_manifest"),
    "manifest.validation": ("ManifestError", "Problem", "parse_job"),
    "reasons": ("ConditionType", "EventReason", "Phase", "Reason"),
    "resolve": ("Claim", "Plan", "resolve_job"),
    "resources.job": ("API_VERSION", "TenSafeTrainingJob"),
    "resources.ledger": ("PrivacyLedger",),
    "resources.status": ("Status",),
    "statement.contents": ("recompute_epsilon",),
}
_MODULE_OF = {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
