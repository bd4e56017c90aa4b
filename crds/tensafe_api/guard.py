"""The ValidatingAdmissionPolicy that guards ledgers: who may write one, and that nobody deletes it.

The rules of a CRD see what is written, not who writes, and do not run on deletion. So this policy, which is installed
with the CRDs, refuses

- a status that another service account writes than the one that the ledger's spec names;
- a status that is written from another pod than the one that claims or charges (the pod's UID comes from its bound
  token, which nobody but the API server issues);
- a deletion, unless the namespace goes, or somebody has said in so many words that this very ledger may be forgotten.

It binds cluster administrators too. `tensafe_api.crd` writes it to a file.
"""

from __future__ import annotations

from typing import Any

FORGET = "tensafe.io/forget"
"""Annotation of a ledger that may be deleted; its value is the ledger's own UID, so that no copy of it works."""
POLICY_NAME = "privacyledgers.tensafe.io"

_IS_STATUS = "request.?subResource.orValue('') == 'status'"
_POD_UIDS = "request.userInfo.extra[?'authentication.kubernetes.io/pod-uid'].orValue([])"

_VALIDATIONS = (
    (
        "request.operation != 'DELETE' || has(namespaceObject.metadata.deletionTimestamp) || "
        "(has(oldObject.metadata.annotations) && "
        f"'{FORGET}' in oldObject.metadata.annotations && "
        f"oldObject.metadata.annotations['{FORGET}'] == oldObject.metadata.uid)",
        "a privacy ledger is not deleted, since what was spent stays spent; if its data are gone for good, set the "
        f"annotation {FORGET} to the ledger's UID first",
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


def admission_policy() -> list[dict[str, Any]]:
    """The policy, and the binding that puts it in force everywhere."""
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": POLICY_NAME},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": ["tensafe.io"],
                        "apiVersions": ["*"],
                        "operations": ["UPDATE", "DELETE"],
                        "resources": ["privacyledgers", "privacyledgers/status"],
                    }
                ]
            },
            "validations": [
                {"expression": expression, "message": message, "reason": "Forbidden"}
                for expression, message in _VALIDATIONS
            ],
        },
    }
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": POLICY_NAME},
        "spec": {"policyName": POLICY_NAME, "validationActions": ["Deny"]},
    }
    return [policy, binding]
