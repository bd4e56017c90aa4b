"""The ValidatingAdmissionPolicies that protect ledgers: who may write a ledger, and that none is deleted.

The rules of a CRD see the object, but not the user who writes it, and they do not run on deletion. So these policies,
which are installed with the CRDs, refuse

- a status that is written by a service account other than the one in the ledger's spec;
- a status that is written from a pod other than the one that acquires or charges the ledger (the pod's UID comes from
  its bound token, which only the API server issues);
- the deletion of a ledger, unless its namespace is being deleted or an annotation names this ledger's UID;
- the deletion of the CRD of ledgers, which would delete every ledger of the cluster, and of that of jobs, which would
  end every training, unless an annotation names the CRD's UID.

They apply to cluster administrators too. `tensafe_api.schema.crd` writes them to a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FORGET_ANNOTATION = "tensafe.io/forget"
"""Annotation of a ledger that may be deleted. Its value is the UID of that ledger, so a copied annotation has no
effect.
"""
KEEP_ANNOTATIONS = {
    "argocd.argoproj.io/sync-options": "Prune=false,Delete=false",
    "helm.sh/resource-policy": "keep",
}
"""Annotations of objects that must outlive an installation: `helm uninstall` and Argo CD keep them."""
POLICY_KIND, BINDING_KIND = "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"
POLICY_NAME = "privacyledgers.tensafe.io"
GUARD_VERSION = 3
"""Version of what an operator needs in its cluster: these policies, and the CRDs of jobs and ledgers. It rises with
each change of a rule or a field, so that an operator knows older ones.
"""
VERSION_ANNOTATION = "tensafe.io/guard-version"
_JOBS = "tensafetrainingjobs.tensafe.io"
_CRD_POLICY_NAME = "privacyledgers-kind.tensafe.io"

_IS_STATUS = "request.?subResource.orValue('') == 'status'"
_POD_UIDS = "request.userInfo.?extra[?'authentication.kubernetes.io/pod-uid'].orValue([])"

_DELETION_ALLOWED = (
    f"has(oldObject.metadata.annotations) && '{FORGET_ANNOTATION}' in oldObject.metadata.annotations && "
    f"oldObject.metadata.annotations['{FORGET_ANNOTATION}'] == oldObject.metadata.uid"
)
_LEDGER_RULES = (
    (
        f"request.operation != 'DELETE' || has(namespaceObject.metadata.deletionTimestamp) || ({_DELETION_ALLOWED})",
        "a privacy ledger is not deleted, because spent budget stays spent: if its data no longer exist, set the "
        f"annotation {FORGET_ANNOTATION} to the UID of the ledger first",
    ),
    (
        f"request.operation == 'DELETE' || !({_IS_STATUS}) || request.userInfo.username == "
        "'system:serviceaccount:' + request.namespace + ':' + object.spec.serviceAccountName",
        "only the service account in spec.serviceAccountName writes the status of a privacy ledger: write it from the "
        "job's workers",
    ),
    (
        f"request.operation == 'DELETE' || !({_IS_STATUS}) || !has(object.status) || "
        f"object.status.charges.exists(c, c.attempt == object.status.attempt && c.podUID in {_POD_UIDS})",
        "only the pod that acquired a privacy ledger writes its status, with its own bound token: acquire it from this "
        "pod first",
    ),
)
_CRD_RULES = (
    (
        # The API server deletes a collection in two steps: one request without an object, then one for each object.
        f"oldObject == null || oldObject.metadata.name != '{POLICY_NAME}' || ({_DELETION_ALLOWED})",
        "deleting this CRD would delete every privacy ledger of the cluster: if none is needed any more, set the "
        f"annotation {FORGET_ANNOTATION} to the UID of the CRD first",
    ),
    (
        f"oldObject == null || oldObject.metadata.name != '{_JOBS}' || ({_DELETION_ALLOWED})",
        "deleting this CRD would delete every job of the cluster and end its training: if none is needed any more, set "
        f"the annotation {FORGET_ANNOTATION} to the UID of the CRD first",
    ),
)


def admission_policies() -> list[dict[str, Any]]:
    """The policies, each followed by the binding that applies it to the whole cluster."""
    ledgers = {
        "apiGroups": ["tensafe.io"],
        "apiVersions": ["*"],
        "operations": ["UPDATE", "DELETE"],
        "resources": ["privacyledgers", "privacyledgers/status"],
    }
    kind = {
        "apiGroups": ["apiextensions.k8s.io"],
        "apiVersions": ["*"],
        "operations": ["DELETE"],
        "resources": ["customresourcedefinitions"],
    }
    return [*_policy(POLICY_NAME, ledgers, _LEDGER_RULES), *_policy(_CRD_POLICY_NAME, kind, _CRD_RULES)]


def _policy(name: str, matched: dict[str, Any], rules: tuple[tuple[str, str], ...]) -> list[dict[str, Any]]:
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": POLICY_KIND,
        "metadata": {"name": name, "annotations": {**KEEP_ANNOTATIONS, VERSION_ANNOTATION: str(GUARD_VERSION)}},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [matched]},
            "validations": [
                {"expression": expression, "message": message, "reason": "Forbidden"} for expression, message in rules
            ],
        },
    }
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": BINDING_KIND,
        "metadata": {"name": name, "annotations": {**KEEP_ANNOTATIONS, VERSION_ANNOTATION: str(GUARD_VERSION)}},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    }
    return [policy, binding]


def guard_version(installed: Mapping[str, Any]) -> int:
    """The version of a policy, a binding or a CRD, as the API server returns it; 0 without one."""
    version = (installed["metadata"].get("annotations") or {}).get(VERSION_ANNOTATION, "")
    return int(version) if version.isdecimal() and len(version) < 10 else 0
