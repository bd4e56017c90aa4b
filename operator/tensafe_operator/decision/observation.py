"""The input and the output of one decision: what a reconcile observes of a job, and what it decides to do.

All are plain values. Objects have the form in which the API server returns them. Each may be stale or missing. A
decision that ends something, or that starts another attempt, is marked `irreversible`: `reconcile` then reads the API
server itself and decides again before it acts. Everything else is safe on a stale observation: the names of objects
follow from the job and the attempt, the status is written under the version that was observed, and the ledger fences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tensafe_api.resources.status import Status
from tensafe_operator.children import Manifest
from tensafe_operator.decision.figures import Figure

Object = Mapping[str, Any]


@dataclass(frozen=True)
class ClusterWarning:
    """A warning about an object of the job: a Kubernetes Event without the fields that no policy reads, or an object
    that the API server refused to create.

    Attributes:
        time: when the Event was last reported, in seconds since the epoch; None where it is not known.
    """

    kind: str
    name: str
    reason: str
    message: str
    time: float | None = None


@dataclass(frozen=True)
class Observed:
    """A job and the objects that belong to it.

    Attributes:
        job: the TenSafeTrainingJob.
        ledger: the PrivacyLedger with the name that belongs to the job's UID, or None.
        ray_jobs: the RayJobs that the job owns.
        pods: the pods whose label holds the job's UID.
        warnings: warnings about those pods and RayJobs, and about objects that the API server refused to create.
        kuberay: whether the API server serves RayJobs.
        corrected: the NetworkPolicy of the job. A correction can be taken twice, so it may be from the cache in an
            observation that is otherwise the API server's own.
        profile: the TenSafeClusterProfile that the job names. None if it names none, if there is none of that name,
            and in an observation from a cache, which has no profiles.
        figures: the privacy figures that the accountant has computed for this job.
    """

    job: Object
    ledger: Object | None = None
    ray_jobs: tuple[Object, ...] = ()
    pods: tuple[Object, ...] = ()
    warnings: tuple[ClusterWarning, ...] = ()
    kuberay: bool = True
    corrected: tuple[Object, ...] = ()
    profile: Object | None = None
    figures: Mapping[Figure[Any], Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Create:
    """Create an object. If the job already owns an object of that name, the action succeeds without a change, except
    that a NetworkPolicy is brought back to this manifest, as are the objects that the jobs of a namespace share.
    """

    manifest: Manifest

    @property
    def kind(self) -> str:
        """The kind of the object."""
        return str(self.manifest["kind"])


@dataclass(frozen=True)
class Delete:
    """Delete an object, and after it what it owns.

    Attributes:
        uid: its UID; None only for Secrets, which the operator may not read, and for what cert-manager needs.
    """

    kind: str
    name: str
    uid: str | None = None


Action = Create | Delete


@dataclass(frozen=True)
class Decision:
    """What one reconcile does.

    Attributes:
        actions: the actions, in this order. A crash after any of them loses nothing.
        status: the new status of the job, written after the actions.
        wake: when to reconcile again although nothing has changed, in seconds since the epoch. None: only on a change.
        irreversible: whether the decision must rest on the API server's own answer and not on a cache.
        figures: the privacy figures that the next decision needs, known or not.
    """

    actions: tuple[Action, ...]
    status: Status
    wake: float | None = None
    irreversible: bool = False
    figures: tuple[Figure[Any], ...] = ()
