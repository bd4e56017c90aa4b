"""Names and labels of everything that the operator makes, so that each object tells whose it is.

A job's UID is in every label selector and its short form in the ledger's name: a job that was deleted and applied again
under the same name is another job, with another ledger. Labels are for finding things; anybody may edit them. Whose a
RayJob is, its owner says, and whose a ledger is, its spec.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tensafe_api.resources.job import GROUP, KIND
from tensafe_api.resources.ledger import MAX_ATTEMPTS

JOB = f"{GROUP}/job"
JOB_UID = f"{GROUP}/job-uid"
ATTEMPT = f"{GROUP}/attempt"
MANAGED_BY = "app.kubernetes.io/managed-by"
QUEUE = "kueue.x-k8s.io/queue-name"
OPERATOR = "tensafe-operator"
TRAINER_ROLE = "tensafe-trainer"
"""ClusterRole that the chart installs: what a trainer's service account may do with its own ledger and job."""

RAY_CLUSTER_LABEL = "ray.io/cluster"
RAY_NODE_TYPE = "ray.io/node-type"


def ledger_name(job: str, uid: str) -> str:
    """Name of a job's ledger: its own for each UID."""
    return f"{job}-{uid.replace('-', '')[:8]}"


def ray_job_name(job: str, attempt: int) -> str:
    """Name of an attempt's RayJob: at most 44 characters, KubeRay takes 47."""
    return f"{job}-a{attempt}"


def attempt_of(body: Mapping[str, Any]) -> int | None:
    """The attempt that an object says it belongs to; None where it says nothing that we would have written."""
    text = (body["metadata"].get("labels") or {}).get(ATTEMPT, "")
    return int(text) if re.fullmatch("[1-9][0-9]?", text) and int(text) <= MAX_ATTEMPTS else None


def attempt_named(job: str, ray_job: str) -> int:
    """The attempt that a RayJob of this name is of; 0 for a name that is none of the job's."""
    found = re.fullmatch(rf"{re.escape(job)}-a([1-9][0-9]?)", ray_job)
    return int(found[1]) if found else 0


def job_uid_of(kind: str, body: Mapping[str, Any]) -> str:
    """UID of the job that an object of this kind belongs to; empty where it belongs to none."""
    match kind:
        case "TenSafeTrainingJob":
            return str(body["metadata"]["uid"])
        case "RayJob":
            owners = body["metadata"].get("ownerReferences") or ()
            return next((str(owner["uid"]) for owner in owners if owner.get("kind") == KIND), "")
        case "PrivacyLedger":
            return str((body.get("spec") or {}).get("jobUID") or "")
    return str((body["metadata"].get("labels") or {}).get(JOB_UID) or "")


def labels(job: str, uid: str, attempt: int | None = None) -> dict[str, str]:
    """The labels of an object of this job. Nothing is copied from the job: a copied label of Argo CD's would make it
    prune what it never made.
    """
    own = {JOB: job, JOB_UID: uid, MANAGED_BY: OPERATOR}
    return own if attempt is None else {**own, ATTEMPT: str(attempt)}
