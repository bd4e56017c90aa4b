"""Fixes for causes that need another action than their reason's own fix.

The operator ends a message with one of these, and the kubectl plugin finds it there.
"""

from __future__ import annotations

from typing import Final

JOB_KEY: Final = "This Secret had the key of the job and cannot be restored. Create a new job."
OBJECT_OF_ATTEMPT: Final = (
    "The operator created this object for the attempt. Suspend the job, and set spec.suspend to false when it "
    "is Suspended: the next attempt gets a new one."
)
SERVICE_ACCOUNT: Final = (
    "Create this service account in the job's namespace; the job then continues without further action."
)
CLASS: Final = (
    "Create this class; the job then continues without further action. Or suspend the job, correct spec.cluster or its "
    "profile, and set spec.suspend to false."
)
LIMIT_RANGE: Final = (
    "Change the LimitRange of the namespace, which must allow 50m of CPU and 128Mi of memory: the operator's own "
    "containers request these. The job then continues without further action. For other values, you can also suspend "
    "the job, change cluster.worker and cluster.head, and set spec.suspend to false."
)
QUOTA_OF_OBJECTS: Final = (
    "An administrator raises this quota, or deletes objects of this kind; the job then continues "
    "without further action."
)
QUOTA_OF_PODS: Final = (
    "An administrator raises this quota, or other pods of the namespace end; the job then continues without further "
    "action. Fewer workers need a new job."
)
VOLUME_LIMIT: Final = (
    "Suspend the job, raise the emptyDir of this volume in volumes of spec.cluster or its profile, and set "
    "spec.suspend to false. The volume shared-mem is as large as the memory of its pod."
)
STORAGE_LIMIT: Final = (
    "An administrator raises the limit of ephemeral-storage that a LimitRange of the namespace, or a webhook, gives to "
    "containers: the operator sets none. The job then continues without further action."
)
POD_FIELDS: Final = (
    "Suspend the job, correct the fields in the message, in spec.cluster or its profile, and set spec.suspend to false."
)
CLAIM_MISSING: Final = (
    "Create this PersistentVolumeClaim in the job's namespace; the job then continues without further action."
)
CLAIM_UNBOUND: Final = (
    "Give the PersistentVolumeClaim a volume, or a StorageClass that provisions one; the job then continues without "
    "further action."
)
PLACEMENT: Final = (
    "Add a node that fits; the job then continues without further action. Or suspend the job, change nodeSelector, "
    "tolerations and affinity in spec.cluster or its profile, and set spec.suspend to false."
)
SCHEDULER: Final = (
    "Check whether the scheduler in cluster.schedulerName runs, and whether the queue in cluster.rayJobLabels exists "
    "and has room, which YuniKorn shows at its pods tg-*; the job then continues without further action. Or suspend "
    "the job, correct these fields, and set spec.suspend to false."
)
GANG: Final = (
    "Free resources in the queue or on the nodes (the Events of the PodGroup show which); the job then continues "
    "without further action. Or suspend the job, lower the resources in cluster.worker and cluster.head, and set "
    "spec.suspend to false."
)
GATES: Final = (
    "Check the component that sets scheduling gates on pods, such as Kueue; the job then continues without further "
    "action."
)
IMAGE_OF_CHART: Final = (
    "Push this image, or correct the Secret with which it is pulled; the job then continues without further action. Or "
    "suspend the job, set cluster.imagePullSecrets, or let an administrator correct the chart's trainer.image or the "
    "job's profile, and set spec.suspend to false."
)
IMAGE_KEPT: Final = (
    "The job keeps the image with which it started. Push it again, with the same digest, or correct the Secret with "
    "which it is pulled; the job then continues without further action. Or suspend the job, set cluster.image to "
    "another tag or digest, with its cluster.rayVersion, and set spec.suspend to false."
)
IMAGE_NOT_LOADED: Final = (
    "Load the image on the node; the job then continues without further action. Or suspend the job, set "
    "cluster.imagePullPolicy, or that of its profile, to IfNotPresent, and set spec.suspend to false."
)
IMAGE_UNSIGNED: Final = (
    "Sign the image as the nodes require it, or let an administrator change what they require; the job then continues "
    "without further action. Or suspend the job, set cluster.image to a signed image, and set spec.suspend to false."
)
CERT_MANAGER: Final = (
    "Install cert-manager, which has this kind, or set the chart's value jobs.tls.mode to PerAttempt; the job then "
    "continues without further action."
)
CERTIFICATE: Final = (
    "cert-manager issues this Secret for the Certificate of the same name, whose status says why it has not. Once it "
    "has, the job continues without further action. After a change of the chart's value jobs.tls.issuerRef, suspend "
    "the job, and set spec.suspend to false when it is Suspended."
)
AUTHORITY: Final = (
    "An administrator corrects the issuer of cert-manager that the chart's value jobs.tls.issuerRef names. Then "
    "suspend the job, and set spec.suspend to false when it is Suspended: the next attempt gets a new authority."
)
NODE_LOST: Final = (
    "Look at its node (kubectl get nodes). Delete the Node if it does not come back, or the pod with "
    "kubectl delete pod POD -n NAMESPACE --force. The job then continues without further action."
)
CHANGED_BY_OTHERS: Final = (
    "Find the client that changes this object, such as a second operator for this namespace, and stop it; the job then "
    "continues without further action."
)
NETWORK_POLICY: Final = (
    "An administrator corrects the chart's value jobs.networkPolicy, from which this object is made; the job then "
    "continues without further action."
)
HEAD_NOT_REACHED: Final = (
    "Let the job's pods reach each other and the cluster's DNS, which the chart's value jobs.networkPolicy.dns and the "
    "NetworkPolicies of the namespace decide; the job then continues without further action. With jobs.tls.mode "
    "CertManager, the pods may have got different authorities: suspend the job, and set spec.suspend to false when it "
    "is Suspended."
)
GRACE_PERIOD: Final = (
    "Shorten it: kubectl delete pod POD -n NAMESPACE --grace-period=1, with the pod in the message and the job's "
    "namespace. The job then continues without further action."
)
SLOW_STEP: Final = (
    "While an attempt runs, read in the logs of its workers (kubectl tensafe logs) what they wait for. If the model, "
    "the data or a step takes longer, an administrator raises the chart's value stallSeconds."
)
LOST_AGAIN: Final = (
    "While an attempt runs, read the logs of its pods (kubectl tensafe logs), and check for a lack of memory, for "
    "nodes that are removed, and the network."
)
LEDGER_SHORTENED: Final = (
    "Delete the job. In the earlierSteps of the next one, count its charged steps, and also its own earlierSteps: they "
    "are in its manifest, and in the statement of the adapter from which it started."
)
JOB_TOO_LARGE: Final = "Edit the job to remove labels, annotations or finalizers, or create a smaller one."
FINALIZER: Final = (
    "If the finalizer is KubeRay's (ray.io/rayjob-finalizer), install KubeRay 1.6 or newer, or let it watch this "
    "namespace; the job then continues without further action. Otherwise remove it from the RayJob (kubectl edit), or "
    "repair the component that set it."
)
PARAMETERS_TOO_LARGE: Final = (
    "Suspend the job, shorten its longest texts, such as those of cluster.env and podAnnotations, and set spec.suspend "
    "to false. If the longest cannot change, create a smaller job."
)
OWN_FIXES: Final = (
    JOB_KEY,
    OBJECT_OF_ATTEMPT,
    SERVICE_ACCOUNT,
    CLASS,
    LIMIT_RANGE,
    QUOTA_OF_OBJECTS,
    QUOTA_OF_PODS,
    VOLUME_LIMIT,
    STORAGE_LIMIT,
    POD_FIELDS,
    CLAIM_MISSING,
    CLAIM_UNBOUND,
    PLACEMENT,
    SCHEDULER,
    GANG,
    GATES,
    IMAGE_OF_CHART,
    IMAGE_KEPT,
    IMAGE_NOT_LOADED,
    IMAGE_UNSIGNED,
    CERT_MANAGER,
    CERTIFICATE,
    AUTHORITY,
    NODE_LOST,
    CHANGED_BY_OTHERS,
    NETWORK_POLICY,
    HEAD_NOT_REACHED,
    GRACE_PERIOD,
    SLOW_STEP,
    LOST_AGAIN,
    LEDGER_SHORTENED,
    JOB_TOO_LARGE,
    FINALIZER,
    PARAMETERS_TOO_LARGE,
)


def split_fix(message: str, general: str) -> tuple[str, str]:
    """Return what a message says has happened, and the fix with which it ends.

    Args:
        message: of a condition whose reason has a fix.
        general: the fix of the reason; it is returned where the message ends with none.
    """
    fix = next((own for own in OWN_FIXES if message.endswith(own)), general)
    return (message.removesuffix(fix).rstrip(" :") if fix else message), fix
