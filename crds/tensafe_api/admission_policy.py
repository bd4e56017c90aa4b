"""The ValidatingAdmissionPolicies that guard ledgers: who may write one, and that nobody deletes one, or all of them.

The rules of a CRD see what is written, not who writes, and do not run on deletion. So this policy, which is installed
with the CRDs, refuses

- a status that another service account writes than the one that the ledger's spec names;
- a status that is written from another pod than the one that claims or charges (the pod's UID comes from its bound
  token, which nobody but the API server issues);
- a deletion, unless the namespace goes, or somebody has said in so many words that this very ledger may be forgotten;
- the deletion of the CRD itself, which would take every ledger of the cluster with it, unless the same was said of it.

They bind cluster administrators too. `tensafe_api.crd` writes them to a file.
"""

from __future__ import annotations

from typing import Any

FORGET_ANNOTATION = "tensafe.io/forget"
"""Annotation of a ledger that may be deleted; its value is the ledger's own UID, so that no copy of it works."""
KEEP_ANNOTATIONS = {
    "argocd.argoproj.io/sync-options": "Prune=false,Delete=false",
    "helm.sh/resource-policy": "keep",
}
"""Annotations of what must outlive an installation: `helm uninstall` and Argo CD leave it in the cluster."""
POLICY_NAME = "privacyledgers.tensafe.io"
_KIND_POLICY_NAME = "privacyledgers-kind.tensafe.io"

_IS_STATUS = "request.?subResource.orValue('') == 'status'"
_POD_UIDS = "request.userInfo.extra[?'authentication.kubernetes.io/pod-uid'].orValue([])"

_LET_GO = (
    f"has(oldObject.metadata.annotations) && '{FORGET_ANNOTATION}' in oldObject.metadata.annotations && "
    f"oldObject.metadata.annotations['{FORGET_ANNOTATION}'] == oldObject.metadata.uid"
)
_OF_LEDGERS = (
    (
        f"request.operation != 'DELETE' || has(namespaceObject.metadata.deletionTimestamp) || ({_LET_GO})",
        "a privacy ledger is not deleted, since what was spent stays spent; if its data are gone for good, set the "
        f"annotation {FORGET_ANNOTATION} to the ledger's UID first",
    ),
    (
        f"request.operation == 'DELETE' || !({_IS_STATUS}) || request.userInfo.username == "
        "'system:serviceaccount:' + request.namespace + ':' + object.spec.serviceAccountName",
        "only the service account that spec.serviceAccountName names writes the status of a privacy ledger",
    ),
    (
        f"request.operation == 'DELETE' || !({_IS_STATUS}) || !has(object.status) || "
        f"object.status.charges.all(c, c.attempt != object.status.attempt || c.podUID in {_POD_UIDS})",
        "only the pod that claimed a privacy ledger writes its status, with its own bound token",
    ),
)
_OF_THEIR_KIND = (
    (
        # A collection is deleted in two steps: asked for without an object, then for each of them with it.
        f"oldObject == null || oldObject.metadata.name != '{POLICY_NAME}' || ({_LET_GO})",
        "with this CRD every privacy ledger of the cluster would go; if all of that may be forgotten, set the "
        f"annotation {FORGET_ANNOTATION} to the CRD's UID first",
    ),
)


def admission_policies() -> list[dict[str, Any]]:
    """The policies, each with the binding that puts it in force everywhere."""
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
    return [*_policy(POLICY_NAME, ledgers, _OF_LEDGERS), *_policy(_KIND_POLICY_NAME, kind, _OF_THEIR_KIND)]


def _policy(name: str, matched: dict[str, Any], rules: tuple[tuple[str, str], ...]) -> list[dict[str, Any]]:
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name, "annotations": dict(KEEP_ANNOTATIONS)},
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
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name, "annotations": dict(KEEP_ANNOTATIONS)},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    }
    return [policy, binding]
