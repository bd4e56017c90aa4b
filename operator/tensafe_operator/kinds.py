"""The kinds of objects that the operator works with, as the generic runtime needs them.

The parent is the TenSafeTrainingJob. Its children that are watched are the PrivacyLedger, the RayJobs and their pods,
and the NetworkPolicy, which is corrected while the job runs. Profiles and admission policies are
read when they are needed, and so are the CRDs. The other kinds are only created.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensafe_api.resources.job import GROUP, KIND, VERSION
from tensafe_api.resources.ledger import COUNTED_ANNOTATION, LEDGER_KIND
from tensafe_api.resources.profile import PROFILE_KIND
from tensafe_api.schema.admission_policy import BINDING_KIND, POLICY_KIND
from tensafe_api.schema.crd import DEFINITION_KIND
from tensafe_operator import names
from tensafe_operator.runtime.objects import Kinds, Manifest, Resource

CORRECTED_KINDS = ("NetworkPolicy",)
"""The kinds of the objects that are brought back to their manifest while an attempt runs."""
SHARED_KINDS = ("ServiceAccount", "RoleBinding")
"""The kinds of the objects that the jobs of a namespace share. They are applied before each attempt."""
_ADMISSION = ("admissionregistration.k8s.io", "v1")
_DROPPED_METADATA = ("managedFields", "selfLink", "finalizers", "annotations")
_LABELS = frozenset(
    {names.JOB, names.JOB_UID, names.ATTEMPT, names.MANAGED_BY, names.RAY_CLUSTER_LABEL, names.RAY_NODE_TYPE}
)
"""The labels that decisions depend on. An object may have a megabyte of others."""
_KEPT_FIELDS = ("apiVersion", "kind", "spec", "status")
_JOB_ANNOTATIONS = ("kubectl.kubernetes.io/last-applied-configuration", COUNTED_ANNOTATION)
"""Annotations of a job that decisions depend on."""


def trim(kind: str, body: Mapping[str, Any]) -> Manifest:
    """The part of an object that decisions depend on. Field ownership and pod templates are large and not needed."""
    metadata = {name: value for name, value in body["metadata"].items() if name not in _DROPPED_METADATA}
    trimmed = {name: body[name] for name in _KEPT_FIELDS if name in body}
    labels = metadata.get("labels") or {}
    metadata["labels"] = {name: value for name, value in labels.items() if name in _LABELS}
    match kind:
        case "TenSafeTrainingJob":
            annotations = body["metadata"].get("annotations") or {}
            if kept := {name: annotations[name] for name in _JOB_ANNOTATIONS if name in annotations}:
                metadata["annotations"] = kept
        case "RayJob":
            if secret := (body["metadata"].get("annotations") or {}).get(names.TLS_SECRET):
                metadata["annotations"] = {names.TLS_SECRET: secret}
            trimmed["spec"] = {"suspend": (body.get("spec") or {}).get("suspend")}
        case "Pod":
            trimmed.pop("spec", None)
            metadata.pop("ownerReferences", None)
    return {**trimmed, "metadata": metadata}


def ray_cluster_of(kind: str, body: Mapping[str, Any]) -> tuple[str, str] | None:
    """The RayCluster that KubeRay has created for a RayJob, as kind and name.

    KubeRay reports some failures, such as a pod that the quota forbids, as a warning about the RayCluster. It adds
    a dash and random letters to the name of the RayJob. With `clusterSelector`, a RayJob may name that of another job.
    """
    name = (body.get("status") or {}).get("rayClusterName") if kind == "RayJob" else None
    return ("RayCluster", name) if name and name.rpartition("-")[0] == body["metadata"]["name"] else None


KINDS = Kinds(
    resources={
        KIND: Resource(GROUP, VERSION, "tensafetrainingjobs"),
        LEDGER_KIND: Resource(GROUP, VERSION, "privacyledgers"),
        PROFILE_KIND: Resource(GROUP, VERSION, "tensafeclusterprofiles"),
        "RayJob": Resource("ray.io", "v1", "rayjobs"),
        "Pod": Resource("", "v1", "pods"),
        "ConfigMap": Resource("", "v1", "configmaps"),
        "Secret": Resource("", "v1", "secrets"),
        "ServiceAccount": Resource("", "v1", "serviceaccounts"),
        "RoleBinding": Resource("rbac.authorization.k8s.io", "v1", "rolebindings"),
        POLICY_KIND: Resource(*_ADMISSION, "validatingadmissionpolicies"),
        BINDING_KIND: Resource(*_ADMISSION, "validatingadmissionpolicybindings"),
        DEFINITION_KIND: Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions"),
        "Certificate": Resource("cert-manager.io", "v1", "certificates"),
        "NetworkPolicy": Resource("networking.k8s.io", "v1", "networkpolicies"),
    },
    parent=KIND,
    children=(LEDGER_KIND, "RayJob", "Pod", *CORRECTED_KINDS),
    parent_uid=names.job_uid_of,
    warned_kinds=frozenset({"RayJob", "Pod"}),
    warning_source=ray_cluster_of,
    installed_later=frozenset({KIND, LEDGER_KIND, "RayJob"}),
    # Ledgers and RayJobs are recognised without labels, which any user may edit. A corrected object without its labels
    # counts as missing, and gets them again.
    selectors=dict.fromkeys(("Pod", *CORRECTED_KINDS), names.JOB_UID),
    trim=trim,
)
