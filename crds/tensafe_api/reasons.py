"""The words of a status: phases, condition types and reasons, each defined once.

In comes the outcome of one check, attempt or job; out goes the word that the status, the events, the exit code and the
documentation use for it, with a sentence that explains it and what to do. Whoever reads a status acts next.

Words are added, never changed or given another meaning: people and programs match on them.
"""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """Where a job is. Succeeded, BudgetExhausted and Failed are final."""

    PENDING = "Pending"
    """Not looked at yet, or refused until something is mended."""
    QUEUED = "Queued"
    """Waits for its turn in a queue."""
    STARTING = "Starting"
    """Workers are being started, and the data is being read."""
    RUNNING = "Running"
    """Steps are being made."""
    SUSPENDED = "Suspended"
    """Stopped on request, with a checkpoint to go on from."""
    SUCCEEDED = "Succeeded"
    """The planned steps are done."""
    BUDGET_EXHAUSTED = "BudgetExhausted"
    """Ended before the planned steps, with a usable checkpoint, because the budget allowed no more."""
    FAILED = "Failed"
    """Ended without the planned steps; the reason says why."""

    @property
    def final(self) -> bool:
        """Whether no other phase can follow."""
        return self in (Phase.SUCCEEDED, Phase.BUDGET_EXHAUSTED, Phase.FAILED)


class ConditionType(StrEnum):
    """Aspects of a job that are each true, false or unknown."""

    ACCEPTED = "Accepted"
    """The manifest can be run as it is."""
    READY = "Ready"
    """The job is done, and its adapter can be used."""
    RECONCILING = "Reconciling"
    """Somebody is working towards what the manifest asks."""
    STALLED = "Stalled"
    """Nothing goes on until a person mends something."""
    QUEUED = "Queued"
    """The job waits in a queue."""
    PODS_READY = "PodsReady"
    """All workers are there."""
    RUNNING = "Running"
    """Steps are being made."""
    SUCCEEDED = "Succeeded"
    """The job ended well; BudgetExhausted counts as well, and is the reason then."""
    FAILED = "Failed"
    """The job ended in failure."""


class EventReason(StrEnum):
    """What only Events tell. The reason of any other Event is the phase that the job enters or, in a warning, why it
    waits for somebody or why an attempt failed.
    """

    ATTEMPT_STARTED = "AttemptStarted"
    """An attempt begins; the message names its RayJob."""
    MODEL_RELEASED = "ModelReleased"
    """The model is there; the message says where, and which ε its statement claims."""


class Reason(StrEnum):
    """Why an attempt or a job is where it is.

    Attributes:
        sentence: what happened.
        fix: what to do about it; empty where there is nothing to do.
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
        "The next steps would have exceeded privacy.targetEpsilon, so training ended with the steps before them.",
        "The last checkpoint is usable as it is; next time plan fewer steps or more privacy.reserveSteps.",
    )
    PRIVACY_BUDGET_EXCEEDED = (
        "PrivacyBudgetExceeded",
        "The next steps would have exceeded privacy.targetEpsilon, and privacy.onBudgetExhausted is Fail.",
        "Plan fewer steps or more privacy.reserveSteps, or set privacy.onBudgetExhausted to Stop.",
    )
    INTERRUPTED = (
        "Interrupted",
        "The run was asked to stop, and sealed a checkpoint first.",
        "A local run goes on from there with --resume, a job in a cluster by itself or, once it was suspended, with "
        "spec.suspend false.",
    )
    WORKER_LOST = (
        "WorkerLost",
        "A worker died or could no longer be reached.",
        "A local run goes on with --resume, a job in a cluster by itself; when it happens again, look for a lack of "
        "memory or a machine that goes away.",
    )
    NO_PROGRESS = (
        "NoProgress",
        "The workers failed again without a new checkpoint in between, so another restart would only cost privacy.",
        "Mend what the message names. A local run then goes on with --resume; in a cluster make a new job.",
    )
    ATTEMPTS_EXHAUSTED = (
        "AttemptsExhausted",
        "The last of retry.maxAttempts has failed.",
        "Mend what the last attempt's message names. A local run then goes on with --resume and a higher "
        "retry.maxAttempts; in a cluster make a new job.",
    )
    DEADLINE_EXCEEDED = (
        "DeadlineExceeded",
        "The job ran for longer than activeDeadlineSeconds.",
        "Make a new job with a higher activeDeadlineSeconds or fewer steps.",
    )
    INVALID_MANIFEST = (
        "InvalidManifest",
        "The manifest asks for something that cannot be run.",
        "Change the fields that the message names; where kubectl says that one cannot change, delete the job first.",
    )
    CONFIGURATION_CHANGED = (
        "ConfigurationChanged",
        "A resumed run has other privacy values or other data than the ledger was opened with.",
        "A local run goes on with --resume and the manifest and data that it began with, or starts anew in an empty "
        "output directory; in a cluster make a new job.",
    )
    GRID_OVERFLOW = (
        "GridOverflow",
        "The batch and the noise leave too few bits for the gradients on the integer grid.",
        "Lower training.expectedBatchSize or privacy.noiseMultiplier.",
    )
    RESOURCES_MISSING = (
        "ResourcesMissing",
        "The workers ask for more CPUs or GPUs than there are.",
        "Lower cluster.workers or what cluster.worker asks for.",
    )
    DATASET_UNREADABLE = (
        "DatasetUnreadable",
        "The data set cannot be read.",
        "Check dataset.uri, dataset.format and the credentials.",
    )
    DATASET_UNSUITABLE = (
        "DatasetUnsuitable",
        "The data set is empty, or has not the columns that the manifest names.",
        "Check dataset.columns against the data.",
    )
    MODEL_UNAVAILABLE = (
        "ModelUnavailable",
        "The model cannot be loaded.",
        "Check model.name, model.revision and model.tokenSecret.",
    )
    MODEL_UNSUPPORTED = (
        "ModelUnsupported",
        "The model or its trainable layers allow no per-example gradients.",
        "Choose another model.name or lora.targetModules.",
    )
    CHECKPOINT_UNWRITABLE = (
        "CheckpointUnwritable",
        "A checkpoint cannot be written or read.",
        "Check checkpoint.uri, the credentials and the free space.",
    )
    CHECKPOINT_CORRUPT = (
        "CheckpointCorrupt",
        "A checkpoint is not what was written.",
        "Remove it, and a local run goes on from the one before with --resume; in a cluster make a new job. What was "
        "charged stays charged.",
    )
    LEDGER_CORRUPT = (
        "LedgerCorrupt",
        "The ledger was edited, cut or is from another run, so what was spent is not known.",
        "A local run goes on with --resume once the ledger is put back as it was written; in a cluster make a new job.",
    )
    LEDGER_LOCKED = (
        "LedgerLocked",
        "Another run holds the ledger.",
        "Wait until it has ended.",
    )
    LEDGER_UNREACHABLE = (
        "LedgerUnreachable",
        "The API server did not answer, or did not let the trainer read its ledger.",
        "Nothing is lost: it goes on from the last checkpoint once the API server answers and the service account may.",
    )
    AGGREGATION_FAILED = (
        "AggregationFailed",
        "The workers disagreed on a step, or its sum did not pass verification.",
        "A local run goes on with --resume, a job in a cluster by itself; when it happens again, look for a broken "
        "network or library.",
    )
    ACCEPTED = "Accepted", "The manifest can be run as it is."
    STARTING = "Starting", "The pods are being started, and the data is being read."
    TRAINING = "Training", "Steps are being made."
    QUEUED = "Queued", "The job waits for its turn in its queue."
    SUSPENDED = "Suspended", "The job was suspended by its author.", "Set spec.suspend to false to go on."
    SUSPENDING = "Suspending", "The workers were asked to seal a checkpoint and stop."
    RETRYING = "Retrying", "The last attempt failed, and the next one begins soon."
    UNKNOWN_FIELD = (
        "UnknownField",
        "The manifest that was applied has fields that the API server dropped.",
        "Correct the fields that the message names, and apply it again.",
    )
    LEDGER_LOST = (
        "LedgerLost",
        "The job's ledger is gone or another one stands in its place, so what was spent is not known.",
        "Make a new job; a job whose ledger is lost never goes on.",
    )
    KUBERAY_MISSING = (
        "KubeRayMissing",
        "KubeRay is not installed in this cluster.",
        "Install KubeRay 1.6 or newer; the job then goes on by itself.",
    )
    VALIDATION_FAILED = (
        "ValidationFailed",
        "KubeRay refuses the RayJob.",
        "Change the fields that the message names, in a new job.",
    )
    IMAGE_PULL_FAILED = (
        "ImagePullFailed",
        "The image of a pod cannot be pulled.",
        "Check cluster.image and cluster.imagePullSecrets; the job then goes on by itself.",
    )
    UNSCHEDULABLE = (
        "Unschedulable",
        "No node has what a pod asks for.",
        "Lower cluster.worker or cluster.head, or make room; the job then goes on by itself.",
    )
    QUOTA_EXCEEDED = (
        "QuotaExceeded",
        "The namespace's quota does not allow the pods.",
        "Raise the quota, or lower cluster.workers; one on limits.cpu needs a LimitRange with a default beside it; "
        "the job then goes on by itself.",
    )
    CRASH_LOOP = (
        "CrashLoop",
        "A container ends as soon as it has begun.",
        "Look at its log; an image of one's own needs Ray, bash and tensafe in it.",
    )
    SECRET_MISSING = (
        "SecretMissing",
        "A pod waits for a Secret or ConfigMap that is not there, or for a key that it lacks.",
        "Make the object or the key that the message names; the job then goes on by itself.",
    )
    ROOT_IMAGE = (
        "RootImage",
        "The image of a pod runs as root, or as a user without a number; pods run as another user only.",
        "Suspend the job, set cluster.securityContext.runAsUser to a user id above 0, and let it go on.",
    )
    CONTAINER_REFUSED = (
        "ContainerRefused",
        "A node cannot make a container as its pod describes it.",
        "Mend what the message names; the job then goes on by itself.",
    )
    FORBIDDEN = (
        "Forbidden",
        "The API server refuses what the operator has to make.",
        "Let the operator do what the message names; the job then goes on by itself.",
    )
    NAME_TAKEN = (
        "NameTaken",
        "An object that the job needs is there already, and is not the job's.",
        "One of a job that was deleted goes by itself, or look at its finalizers; remove or rename any other.",
    )
    INTERNAL_ERROR = (
        "InternalError",
        "Something failed that should not have.",
        "Please report the message.",
    )

    @property
    def phase(self) -> Phase:
        """Where a job is whose last attempt ended for this."""
        return _PHASES.get(self, Phase.FAILED)

    @property
    def exit_code(self) -> int:
        """What the trainer's driver ends with in a cluster, where an exit code is all that is heard of it: from 64 on,
        in the order of `_TOLD`.
        """
        return _FIRST_EXIT_CODE + _EXIT_CODE_REASONS.index(self) if self in _EXIT_CODE_REASONS else 1

    @property
    def permanent(self) -> bool:
        """Whether another attempt would end in the same way."""
        return self in _PERMANENT


def reason_for_exit_code(code: int) -> Reason | None:
    """The reason that an exit code of the driver stands for, or None."""
    number = code - _FIRST_EXIT_CODE
    return _EXIT_CODE_REASONS[number] if 0 <= number < len(_EXIT_CODE_REASONS) else None


_PHASES = {
    Reason.COMPLETED: Phase.SUCCEEDED,
    Reason.BUDGET_EXHAUSTED: Phase.BUDGET_EXHAUSTED,
    Reason.INTERRUPTED: Phase.SUSPENDED,
}
_FIRST_EXIT_CODE = 64
_EXIT_CODE_REASONS = (
    Reason.WORKER_LOST,
    Reason.NO_PROGRESS,
    Reason.INVALID_MANIFEST,
    Reason.CONFIGURATION_CHANGED,
    Reason.GRID_OVERFLOW,
    Reason.RESOURCES_MISSING,
    Reason.DATASET_UNREADABLE,
    Reason.DATASET_UNSUITABLE,
    Reason.MODEL_UNAVAILABLE,
    Reason.MODEL_UNSUPPORTED,
    Reason.CHECKPOINT_UNWRITABLE,
    Reason.CHECKPOINT_CORRUPT,
    Reason.LEDGER_CORRUPT,
    Reason.LEDGER_LOCKED,
    Reason.LEDGER_UNREACHABLE,
    Reason.AGGREGATION_FAILED,
    Reason.PRIVACY_BUDGET_EXCEEDED,
    Reason.INTERNAL_ERROR,
)
"""Reasons with an exit code of their own; new ones come last."""
_PERMANENT = frozenset(
    {
        Reason.INVALID_MANIFEST,
        Reason.CONFIGURATION_CHANGED,
        Reason.GRID_OVERFLOW,
        Reason.DATASET_UNSUITABLE,
        Reason.MODEL_UNSUPPORTED,
        Reason.CHECKPOINT_CORRUPT,
        Reason.LEDGER_CORRUPT,
        Reason.PRIVACY_BUDGET_EXCEEDED,
        Reason.VALIDATION_FAILED,
        Reason.NO_PROGRESS,
    }
)
