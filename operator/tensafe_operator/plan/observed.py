"""What one reconcile sees of a job, and what it may decide: plain values, in and out of `plan`.

Objects are as the API server has them, possibly stale, missing or repeated. Whatever cannot be undone (a new attempt,
the end of one, a job's end) is `irreversible`: `reconcile` looks again at the API server itself before it is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tensafe_api.resources.status import Status
from tensafe_operator.children import Manifest

Object = Mapping[str, Any]


@dataclass(frozen=True)
class ClusterWarning:
    """A warning that the cluster gave about an object of the job: an Event, trimmed."""

    kind: str
    name: str
    reason: str
    message: str


@dataclass(frozen=True)
class Observed:
    """A job and everything of its own.

    Attributes:
        job: the TenSafeTrainingJob.
        ledger: the PrivacyLedger of the name that belongs to the job's UID, or None.
        ray_jobs: that the job owns.
        pods: of this UID, by label.
        warnings: about those pods and RayJobs, and what the API server refused to make.
        kuberay: whether the cluster knows RayJobs.
    """

    job: Object
    ledger: Object | None = None
    ray_jobs: tuple[Object, ...] = ()
    pods: tuple[Object, ...] = ()
    warnings: tuple[ClusterWarning, ...] = ()
    kuberay: bool = True


@dataclass(frozen=True)
class Create:
    """Make an object that must not be there yet. One that is there already, and the job's own, is as good."""

    manifest: Manifest

    @property
    def kind(self) -> str:
        return str(self.manifest["kind"])


@dataclass(frozen=True)
class DeleteRayJob:
    """Remove a RayJob of this name and UID, and with it its cluster and pods."""

    name: str
    uid: str


Action = Create | DeleteRayJob


@dataclass(frozen=True)
class Decision:
    """What follows from an observation.

    Attributes:
        actions: to be taken in this order; a crash after any of them loses nothing.
        status: what the job's status is to say, written after the actions.
        wake: when to look again though nothing has changed, in seconds since the epoch; None: never.
        irreversible: whether this must rest on what the API server itself says, not on a cache.
    """

    actions: tuple[Action, ...]
    status: Status
    wake: float | None = None
    irreversible: bool = False
