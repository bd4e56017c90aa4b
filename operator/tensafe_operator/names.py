"""Names and labels of the objects that the operator creates.

A job's UID is in every label selector, and a short form of it in the ledger's name. A job that was deleted and applied
again under the same name is therefore another job with another ledger. Labels serve to find objects, but any user may
edit them. Ownership is read from the owner that controls an object, and from a ledger's spec.
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
TLS_SECRET = f"{GROUP}/tls-secret"
"""Annotation of a RayJob: the name of the Secret of its attempt."""
OPERATOR = "tensafe-operator"
"""Field manager, source of Events, and value of the label managed-by."""
METRICS_PREFIX = "tensafe"
TRAINER_ROLE = "tensafe-trainer"
"""ClusterRole that the chart installs: the rights of a trainer's service account on ledgers and jobs."""
TRAINER_ACCOUNT = "tensafe-trainer"
"""Service account that the jobs of a namespace share, unless they name another one."""

RAY_CLUSTER_LABEL = "ray.io/cluster"
RAY_NODE_TYPE = "ray.io/node-type"
STATUS_REFUSED = "The status of this job cannot be written"
"""How the operator's Event begins about a status that the API server refuses."""


def ledger_name(job: str, uid: str) -> str:
    """Name of a job's ledger, which differs for each UID."""
    return f"{job}-{uid.replace('-', '')[:8]}"


def key_prefix(job: str, uid: str) -> str:
    """How the name of the Secret with a job's key starts. The rest cannot be guessed."""
    return f"{ledger_name(job, uid)}-key-"


def ray_job_name(job: str, attempt: int) -> str:
    """Name of an attempt's RayJob: at most 44 characters; KubeRay accepts 47."""
    return f"{job}-a{attempt}"


def submission_id(job: str, uid: str, attempt: int) -> str:
    """Id under which KubeRay submits an attempt to Ray. Each cluster of the RayJob uses the same."""
    return f"{ray_job_name(job, attempt)}-{uid.replace('-', '')[:8]}"


def tls_prefix(ray_job: str) -> str:
    """How the name of the Secret of an attempt starts. The rest cannot be guessed."""
    return f"{ray_job}-tls-"


def is_tls_secret(name: str, ray_job: str) -> bool:
    """Whether the operator could have given this name to the Secret of an attempt."""
    return re.fullmatch(re.escape(tls_prefix(ray_job)) + "[0-9a-f]{8}", name) is not None


def authority_name(tls_secret: str) -> str:
    """Name of the Certificate, and of the Secret, with the authority that cert-manager issues for an attempt."""
    return f"{tls_secret}-ca"


def role_binding_name(account: str) -> str:
    """Name of the RoleBinding with the rights of a service account of workers."""
    return TRAINER_ROLE if account == TRAINER_ACCOUNT else f"{TRAINER_ROLE}-{account}"


def attempt_of(body: Mapping[str, Any]) -> int | None:
    """The attempt in an object's label; None if the label has no value that the operator would have written."""
    text = (body["metadata"].get("labels") or {}).get(ATTEMPT, "")
    return int(text) if re.fullmatch("[1-9][0-9]?", text) and int(text) <= MAX_ATTEMPTS else None


def attempt_named(job: str, ray_job: str) -> int:
    """The attempt in the name of a job's RayJob; 0 if no RayJob of the job has this name."""
    found = re.fullmatch(rf"{re.escape(job)}-a([1-9][0-9]?)", ray_job)
    return int(found[1]) if found else 0


def job_uid_of(kind: str, body: Mapping[str, Any]) -> str:
    """UID of the job that an object of this kind belongs to; empty if it belongs to none."""
    match kind:
        case "TenSafeTrainingJob":
            return str(body["metadata"]["uid"])
        case "RayJob" | "NetworkPolicy":
            owners = body["metadata"].get("ownerReferences") or ()
            found = (each for each in owners if each.get("controller") and each.get("kind") == KIND)
            owner = next(found, None)
            return str(owner["uid"]) if owner and _is_name_of(kind, owner["name"], body["metadata"]["name"]) else ""
        case "PrivacyLedger":
            return str((body.get("spec") or {}).get("jobUID") or "")
    return str((body["metadata"].get("labels") or {}).get(JOB_UID) or "")


def _is_name_of(kind: str, job: str, name: str) -> bool:
    """Whether the operator gives this name to an object of a job. It bounds the number of objects that are kept."""
    return name == job if kind == "NetworkPolicy" else attempt_named(job, name) > 0


def labels(job: str, uid: str, attempt: int | None = None) -> dict[str, str]:
    """The labels of an object of this job. No label is copied from the job: Argo CD would prune objects that carry a
    copy of its tracking label but are not in its manifests.
    """
    own = {JOB: job, JOB_UID: uid, MANAGED_BY: OPERATOR}
    return own if attempt is None else {**own, ATTEMPT: str(attempt)}


def log_fields(namespace: str, job: str) -> dict[str, str]:
    """The fields by which a log line names the job that it is about."""
    return {"namespace": namespace, "job": job}
