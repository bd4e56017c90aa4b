"""The phases, condition types and reasons of a status, each defined once.

The outcome of a check, an attempt or a job has one reason. The status, the Kubernetes Events, the exit code of the
trainer (`driver_exit_codes`) and the documentation all use it. Each reason has a sentence that explains it and one that
gives the fix.

Reasons are added, but never renamed or given another meaning, because users and programs match on them.
"""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """The phase of a job. Succeeded, BudgetExhausted and Failed are final."""

    PENDING = "Pending"
    """The operator has not processed the job yet, or it is blocked until a user fixes a problem."""
    QUEUED = "Queued"
    """The job waits in its queue."""
    STARTING = "Starting"
    """The workers start and read the data."""
    RUNNING = "Running"
    """The job trains."""
    SUSPENDED = "Suspended"
    """The job was stopped on request, with a checkpoint from which it can continue."""
    SUCCEEDED = "Succeeded"
    """All planned steps are done."""
    BUDGET_EXHAUSTED = "BudgetExhausted"
    """The job ended before the planned steps, with a usable checkpoint, because the privacy budget was used up."""
    FAILED = "Failed"
    """The job ended without the planned steps. The reason states why."""

    @property
    def final(self) -> bool:
        """Whether no other phase can follow."""
        return self in (Phase.SUCCEEDED, Phase.BUDGET_EXHAUSTED, Phase.FAILED)


class ConditionType(StrEnum):
    """The types of a job's conditions. Each condition is True, False or Unknown."""

    ACCEPTED = "Accepted"
    """The manifest is valid and can be run."""
    READY = "Ready"
    """The job has ended, and its adapter can be used."""
    RECONCILING = "Reconciling"
    """The operator is working towards the state that the manifest describes."""
    STALLED = "Stalled"
    """Blocked: user action required."""
    QUEUED = "Queued"
    """The job waits in its queue."""
    PODS_READY = "PodsReady"
    """The pods of all workers are ready."""
    RUNNING = "Running"
    """The job trains."""
    SUCCEEDED = "Succeeded"
    """The job ended with a usable adapter. This includes BudgetExhausted, which is then the reason."""
    FAILED = "Failed"
    """The job failed."""


class EventReason(StrEnum):
    """Reasons that only Kubernetes Events have. The reason of any other Event is the phase that the job enters. In a
    warning it is the reason why the job is blocked or why an attempt failed.
    """

    ATTEMPT_STARTED = "AttemptStarted"
    """An attempt has started. The message names its RayJob."""
    MODEL_RELEASED = "ModelReleased"
    """The final model is published. The message gives its location and the ε that its statement claims."""


class Reason(StrEnum):
    """The reason for the state of an attempt or a job.

    Attributes:
        sentence: what happened.
        fix: what the user can do; empty where no action is needed.
    """

    sentence: str
    fix: str

    def __new__(cls, word: str, sentence: str = "", fix: str = "") -> Reason:
        member = str.__new__(cls, word)
        member._value_ = word
        member.sentence = sentence
        member.fix = fix
        return member

    COMPLETED = "Completed", "All planned steps are done."
    BUDGET_EXHAUSTED = (
        "BudgetExhausted",
        "The next steps would have exceeded privacy.targetEpsilon, so the training ended before them.",
        "The last checkpoint is usable. For the next job, plan fewer steps or more privacy.reserveSteps.",
    )
    PRIVACY_BUDGET_EXCEEDED = (
        "PrivacyBudgetExceeded",
        "The next steps would have exceeded privacy.targetEpsilon, and privacy.onBudgetExhausted is Fail.",
        "For the next job, plan fewer steps or more privacy.reserveSteps, or set privacy.onBudgetExhausted to Stop.",
    )
    INTERRUPTED = (
        "Interrupted",
        "The run received a request to stop and wrote a checkpoint first.",
        "Continue a local run from the checkpoint with --resume. A job in a cluster continues without action; a "
        "suspended one continues when spec.suspend is false.",
    )
    WORKER_LOST = (
        "WorkerLost",
        "A worker ended unexpectedly, could no longer be reached, or took too long for a step.",
        "Continue a local run with --resume. A job in a cluster continues without action. If it happens again, check "
        "for a lack of memory or for nodes that are removed.",
    )
    NO_PROGRESS = (
        "NoProgress",
        "The workers failed again without a new checkpoint in between. Another restart would only spend privacy "
        "budget.",
        "Fix the problem in the message. Then continue a local run with --resume; in a cluster, create a new job.",
    )
    ATTEMPTS_EXHAUSTED = (
        "AttemptsExhausted",
        "The last attempt that retry.maxAttempts allows has failed.",
        "Fix the problem in the message of the last attempt. Then continue a local run with --resume and a higher "
        "retry.maxAttempts; in a cluster, create a new job.",
    )
    DEADLINE_EXCEEDED = (
        "DeadlineExceeded",
        "The job ran for more than activeDeadlineSeconds.",
        "Fix the problem in the message, if it has one, and create a new job, with a higher activeDeadlineSeconds or "
        "fewer steps.",
    )
    START_DEADLINE_EXCEEDED = (
        "StartDeadlineExceeded",
        "The pods of an attempt did not start within startDeadlineSeconds.",
        "Fix the problem in the message, if it has one, and create a new job, with a higher startDeadlineSeconds or "
        "without one.",
    )
    INVALID_MANIFEST = (
        "InvalidManifest",
        "The manifest describes a job that cannot be run.",
        "Change the fields in the message. If kubectl reports that a field cannot change, delete the job first.",
    )
    CONFIGURATION_CHANGED = (
        "ConfigurationChanged",
        "The resumed run has other privacy values or other data than the ledger was created with.",
        "Continue a local run with --resume and its original manifest and data, or start a new run in an empty output "
        "directory; in a cluster, create a new job.",
    )
    GRID_OVERFLOW = (
        "GridOverflow",
        "The batch and the noise leave too few bits of the integer grid for the gradients.",
        "Create a new job with a lower training.expectedBatchSize or privacy.noiseMultiplier.",
    )
    RESOURCES_MISSING = (
        "ResourcesMissing",
        "The workers request more CPUs or GPUs than are available.",
        "Free CPUs or GPUs. Or suspend the job, lower the resources in cluster.worker, and set spec.suspend to false; "
        "on one machine, only lower them. Fewer workers need a new job.",
    )
    DATASET_UNREADABLE = (
        "DatasetUnreadable",
        "The data set cannot be read.",
        "Check dataset.uri, dataset.format and the credentials. Another value of these fields needs a new job.",
    )
    DATASET_UNSUITABLE = (
        "DatasetUnsuitable",
        "The data set is empty, or lacks columns that the manifest names.",
        "Compare dataset.columns with the columns of the data, and create a new job.",
    )
    MODEL_UNAVAILABLE = (
        "ModelUnavailable",
        "The model cannot be loaded.",
        "Check model.name, model.revision and model.tokenSecret. Another value of these fields needs a new job.",
    )
    MODEL_UNSUPPORTED = (
        "ModelUnsupported",
        "The model or its trainable layers do not support per-example gradients.",
        "Create a new job with another model.name or lora.targetModules.",
    )
    CHECKPOINT_UNWRITABLE = (
        "CheckpointUnwritable",
        "A checkpoint cannot be written or read.",
        "Check checkpoint.uri, the credentials and the free space. Another checkpoint.uri needs a new job.",
    )
    DISK_FULL = (
        "DiskFull",
        "A disk on which the run writes is full, or the quota of its user is exhausted.",
        "Free space in the folder in the message. Then continue a local run with --resume; a job in a cluster "
        "continues without action.",
    )
    CHECKPOINT_CORRUPT = (
        "CheckpointCorrupt",
        "A checkpoint differs from what was written.",
        "Remove the checkpoint, then continue a local run from the previous one with --resume; in a cluster, create a "
        "new job. Charged steps stay charged.",
    )
    SIGNATURE_INVALID = (
        "SignatureInvalid",
        "The job signs its checkpoints, and the one to resume from is not signed by its key.",
        "Continue a local run with --resume and the key that signed the checkpoint, or move the checkpoint away first "
        "(its steps are then charged again); in a cluster, create a new job.",
    )
    DECRYPTION_FAILED = (
        "DecryptionFailed",
        "The checkpoint to resume or to start from is encrypted, and no identity of the run decrypts it.",
        "Continue a local run with --resume and --identity; in a cluster, create a new job whose "
        "checkpoint.encryption.identitySecretName names a Secret with the identity.",
    )
    LEDGER_CORRUPT = (
        "LedgerCorrupt",
        "The ledger was edited or truncated, or belongs to another run, so the spent budget is unknown.",
        "Restore the ledger as it was written, then continue a local run with --resume; in a cluster, create a new "
        "job.",
    )
    LEDGER_LOCKED = (
        "LedgerLocked",
        "Another run holds the ledger.",
        "Wait until that run has ended.",
    )
    LEDGER_UNREACHABLE = (
        "LedgerUnreachable",
        "The API server did not answer, or did not allow the trainer to read its ledger.",
        "Nothing is lost. Training continues from the last checkpoint when the API server answers and the service "
        "account has access.",
    )
    AGGREGATION_FAILED = (
        "AggregationFailed",
        "The workers disagreed about a step, or the sum of a step failed verification.",
        "Continue a local run with --resume. A job in a cluster continues without action. If it happens again, check "
        "the network and the libraries.",
    )
    ACCEPTED = "Accepted", "The manifest is valid and can be run."
    STARTING = "Starting", "The pods start, and the workers read the data."
    TRAINING = "Training", "The job trains."
    QUEUED = "Queued", "The job waits in its queue."
    SUSPENDED = "Suspended", "The author suspended the job.", "Set spec.suspend to false to continue."
    SUSPENDING = "Suspending", "The workers received the request to write a checkpoint and stop."
    RETRYING = "Retrying", "The last attempt has ended, and the next one starts soon."
    NOT_BLOCKED = "NotBlocked", "Nothing waits for a user."
    NOT_QUEUED = "NotQueued", "The job does not wait in a queue."
    NOT_RUNNING = "NotRunning", "The job does not train."
    NOT_ENDED = "NotEnded", "The job has not ended."
    NOT_FAILED = "NotFailed", "The job has not failed."
    ENDED = "Ended", "The job has ended."
    PODS_READY = "PodsReady", "All workers are ready."
    PODS_NOT_READY = "PodsNotReady", "Not all workers are ready."
    UNKNOWN_FIELD = (
        "UnknownField",
        "The applied manifest has fields that the API server or KubeRay does not know.",
        "Correct the fields in the message, and apply the manifest again. If kubectl reports that a field cannot "
        "change, suspend the job first, and set spec.suspend to false afterwards. A job that has never trained can be "
        "deleted instead.",
    )
    NEWER_MANIFEST = (
        "NewerManifest",
        "The manifest has fields of a newer release than the operator's.",
        "Upgrade the operator to the release of the CustomResourceDefinitions. Or remove the fields in the message. If "
        "kubectl reports that a field cannot change, suspend the job first, and set spec.suspend to false afterwards. "
        "A job that has never trained can be deleted instead.",
    )
    LEDGER_LOST = (
        "LedgerLost",
        "The ledger of the job is missing or was replaced by another one, so the spent budget is unknown.",
        "Create a new job. A job whose ledger is lost never continues.",
    )
    GUARD_MISSING = (
        "GuardMissing",
        "An admission policy that protects ledgers, or a CRD, is missing or older than the operator, or the operator "
        "may not read it. No job is changed meanwhile; running trainings continue.",
        "A cluster administrator applies crds/ again or upgrades the chart; the job then continues without further "
        "action.",
    )
    KUBERAY_MISSING = (
        "KubeRayMissing",
        "KubeRay is not installed in this cluster, is too old, or does nothing in this namespace.",
        "Install KubeRay 1.6 or newer, and let it watch the job's namespace; the job then continues without further "
        "action.",
    )
    NOT_SUBMITTED = (
        "NotSubmitted",
        "The head of an attempt is ready, but KubeRay has not submitted the job to it.",
        "Let KubeRay's operator run, and set the chart's values kuberayNamespace and jobs.networkPolicy.kuberayPods to "
        "its namespace and its labels; the job then continues without further action.",
    )
    PODS_LEFT = (
        "PodsLeft",
        "A pod that should be gone is left, so an attempt cannot start.",
        "Delete the RayJob that the pod's RayCluster belongs to; if there is none, the RayCluster, or else the pod. "
        "The job then continues without further action.",
    )
    PROFILE_MISSING = (
        "ProfileMissing",
        "The TenSafeClusterProfile that cluster.profileRef names does not exist, or the operator may not read it.",
        "A cluster administrator creates the profile, or you suspend the job, correct cluster.profileRef, and set "
        "spec.suspend to false. The job then continues without further action.",
    )
    PROFILE_INVALID = (
        "ProfileInvalid",
        "The job cannot be run with the values of its TenSafeClusterProfile.",
        "A cluster administrator corrects the profile, or you suspend the job, correct spec.cluster, and set "
        "spec.suspend to false. The job then continues without further action.",
    )
    VALIDATION_FAILED = (
        "ValidationFailed",
        "KubeRay refuses the RayJob.",
        "Create a new job with the fields in the message corrected.",
    )
    IMAGE_PULL_FAILED = (
        "ImagePullFailed",
        "A node cannot pull the image of a pod.",
        "Push the image, or correct the Secret with which it is pulled; the job then continues without further action. "
        "Or suspend the job, set cluster.image, with its cluster.rayVersion, and cluster.imagePullSecrets, or let an "
        "administrator correct the chart's trainer.image or the job's profile, and set spec.suspend to false.",
    )
    UNSCHEDULABLE = (
        "Unschedulable",
        "The scheduler finds no node for a pod.",
        "Free resources, or wait until an autoscaler adds a node; the job then continues without further action. Or "
        "suspend the job, lower the resources in cluster.worker and cluster.head, and set spec.suspend to false. Fewer "
        "workers need a new job.",
    )
    QUOTA_EXCEEDED = (
        "QuotaExceeded",
        "The resource quota of the namespace does not allow an object of the job.",
        "An administrator raises the quota, or adds a LimitRange with a default to a quota of limits.cpu; the job then "
        "continues without further action. Or suspend the job, lower the resources in cluster.worker and cluster.head, "
        "and set spec.suspend to false. Fewer workers need a new job.",
    )
    CRASH_LOOP = (
        "CrashLoop",
        "A pod fails, and each pod with which KubeRay replaces it is likely to fail alike.",
        "Suspend the job, fix the problem in the message, and set spec.suspend to false. A custom image must contain "
        "Ray, bash and tensafe. A container that was OOMKilled needs more memory, and a pod that was Evicted a larger "
        "emptyDir in volumes, or a higher limit of ephemeral storage in the namespace's LimitRange.",
    )
    SECRET_MISSING = (
        "SecretMissing",
        "A pod needs a Secret or ConfigMap that does not exist, or a key that it does not have.",
        "Create the object or the key in the message; the job then continues without further action. For an object "
        "that the operator created for an attempt, suspend the job, and set spec.suspend to false when it is "
        "Suspended.",
    )
    ROOT_IMAGE = (
        "RootImage",
        "The image of a pod runs as root or as a user without a numeric id, which pods of a job must not do.",
        "Suspend the job, set cluster.securityContext.runAsUser to a user id above 0, and set spec.suspend to false.",
    )
    CONTAINER_REFUSED = (
        "ContainerRefused",
        "A node cannot create a container as its pod describes it.",
        "Fix the problem in the message; the job then continues without further action.",
    )
    FORBIDDEN = (
        "Forbidden",
        "The API server refuses a request of the operator or of KubeRay for an object of the job.",
        "Give the operator or KubeRay the permission, repair the policy or the webhook, or create what is missing, as "
        "the message says; the job then continues without further action. If it names a field, suspend the job, "
        "correct it in spec.cluster or its profile, and set spec.suspend to false.",
    )
    NAME_TAKEN = (
        "NameTaken",
        "An object with a name that the job needs already exists and does not belong to the job.",
        "An object of a deleted job is removed automatically; if it stays, check its finalizers. Remove or rename any "
        "other object.",
    )
    INTERNAL_ERROR = (
        "InternalError",
        "The software failed in an unexpected way.",
        "Report the message to the maintainers.",
    )

    @classmethod
    def named(cls, word: object) -> Reason | None:
        """The reason with this name; None for one that this version does not know."""
        return cls(str(word)) if word in list(cls) else None

    @property
    def phase(self) -> Phase:
        """The phase of a job whose last attempt ended with this reason."""
        return _PHASES.get(self, Phase.FAILED)

    @property
    def permanent(self) -> bool:
        """Whether another attempt would end with the same reason."""
        return self in _PERMANENT


_PHASES = {
    Reason.COMPLETED: Phase.SUCCEEDED,
    Reason.BUDGET_EXHAUSTED: Phase.BUDGET_EXHAUSTED,
    Reason.INTERRUPTED: Phase.SUSPENDED,
}
_PERMANENT = frozenset(
    {
        Reason.INVALID_MANIFEST,
        Reason.CONFIGURATION_CHANGED,
        Reason.GRID_OVERFLOW,
        Reason.DATASET_UNSUITABLE,
        Reason.MODEL_UNSUPPORTED,
        Reason.CHECKPOINT_CORRUPT,
        Reason.SIGNATURE_INVALID,
        Reason.DECRYPTION_FAILED,
        Reason.LEDGER_CORRUPT,
        Reason.PRIVACY_BUDGET_EXCEEDED,
        Reason.VALIDATION_FAILED,
        Reason.NO_PROGRESS,
        Reason.START_DEADLINE_EXCEEDED,
    }
)
