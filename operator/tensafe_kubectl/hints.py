"""Hints: what to do about single causes that Kubernetes, KubeRay and schedulers report in words of their own.

The operator gives one fix for each reason. This table knows more about frequent causes; the first row that fits counts.
Where a component changes its words, its hint is missing, and the fix of the reason is shown.
"""

from __future__ import annotations

import re

from tensafe_api.reasons import Reason
from tensafe_operator import names

_SUSPEND = "Suspend the job, {}, and set spec.suspend to false."
_BY_ITSELF = "The job then continues without further action."
POD_FIELDS = _SUSPEND.format("correct the fields in the message, in spec.cluster or its profile")
_SHORTEN = _SUSPEND.format("shorten its longest texts, such as those of cluster.env and podAnnotations")

HINTS: tuple[tuple[Reason, str, str], ...] = (
    (Reason.IMAGE_PULL_FAILED, "ErrImageNeverPull", f"Load the image on the node. {_BY_ITSELF}"),
    (
        Reason.IMAGE_PULL_FAILED,
        "SignatureValidationFailed",
        f"Sign the image as the nodes require it, or let an administrator change what they require. {_BY_ITSELF}",
    ),
    (
        Reason.SECRET_MISSING,
        "-[0-9a-f]{8}-key-",
        "This Secret had the key of the job and cannot be restored. Create a new job.",
    ),
    (
        Reason.SECRET_MISSING,
        "-tls-[0-9a-f]{8}-ca",
        "cert-manager issues this Secret for the Certificate of the same name, whose status says why it has not. "
        f"{_BY_ITSELF}",
    ),
    (
        Reason.SECRET_MISSING,
        '["/][a-z0-9-]{1,40}-a[0-9]{1,2}-',
        "The operator created this object for the attempt. Suspend the job, and set spec.suspend to false when it is "
        "Suspended: the next attempt gets a new one.",
    ),
    (
        Reason.QUOTA_EXCEEDED,
        "requested: (count/)?(secrets|configmaps|services)|requested: count/(?!pods)",
        f"An administrator raises this quota, or deletes objects of this kind. {_BY_ITSELF}",
    ),
    (
        Reason.FORBIDDEN,
        'PriorityClass with name|RuntimeClass "',
        f"Create this class. {_BY_ITSELF} Or change it: {_SUSPEND.format('correct spec.cluster or its profile')}",
    ),
    (
        Reason.FORBIDDEN,
        'serviceaccount ".{1,300}" not found',
        f"Create this service account in the job's namespace. {_BY_ITSELF} The operator creates "
        f"{names.TRAINER_ACCOUNT} again by itself, a minute after it has done so last.",
    ),
    (
        Reason.FORBIDDEN,
        "(maximum|minimum) .{0,300} usage per |limit to request ratio|must be less than or equal to .{1,50} limit",
        "Change the LimitRange of the namespace, which must allow 50m of CPU and 128Mi of memory: the operator's own "
        f"containers request these. {_BY_ITSELF}",
    ),
    (
        Reason.FORBIDDEN,
        "ConfigMap .{1,600}Too long: |request is too large|message larger than max",
        _SHORTEN,
    ),
    (
        Reason.FORBIDDEN,
        "NetworkPolicy .{1,600}is invalid",
        f"An administrator corrects the chart's value jobs.networkPolicy, from which this object is made. {_BY_ITSELF}",
    ),
    (
        Reason.FORBIDDEN,
        "Certificate .{1,600}(404 page not found|could not find the requested)",
        "Install cert-manager, which has this kind, or set the chart's value jobs.tls.mode to PerAttempt. "
        f"{_BY_ITSELF}",
    ),
    (Reason.FORBIDDEN, "is invalid: ", POD_FIELDS),
    (
        Reason.CRASH_LOOP,
        "container certificate ",
        "Look at the issuer of cert-manager that the chart's value jobs.tls.issuerRef names, and at the log of this "
        "container. Then suspend the job, and set spec.suspend to false when it is Suspended.",
    ),
    (
        Reason.UNSCHEDULABLE,
        "persistentvolumeclaim .{1,300} not found",
        f"Create this PersistentVolumeClaim in the job's namespace. {_BY_ITSELF}",
    ),
    (
        Reason.UNSCHEDULABLE,
        "unbound immediate PersistentVolumeClaims",
        f"Give the PersistentVolumeClaim a volume, or a StorageClass that provisions one. {_BY_ITSELF}",
    ),
    (Reason.UNSCHEDULABLE, "Insufficient |Too many pods", Reason.UNSCHEDULABLE.fix),
    (
        Reason.UNSCHEDULABLE,
        "node affinity/selector|untolerated taint|unschedulable",
        f"Add a node that fits. {_BY_ITSELF} Or change what the pods ask for: "
        + _SUSPEND.format("change nodeSelector, tolerations and affinity in spec.cluster or its profile"),
    ),
)
"""A reason, what the message of a component has, and what to do."""


def find_hint(reason: Reason, message: str) -> str:
    """What to do about a cause; empty if the table does not know it.

    Args:
        message: what a component reports about it.
    """
    return next((hint for own, words, hint in HINTS if own is reason and re.search(words, message)), "")
