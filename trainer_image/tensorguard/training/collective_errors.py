"""Failing together: an error that one worker finds before the first step ends the attempt on all of them, with its own
sentence.

A worker that raised alone would leave the others waiting in a collective, and Ray would restart the group only to meet
the same error again. So what may fail for good (a model that cannot be loaded, a corrupt checkpoint, an edited ledger)
runs inside `run_on_all_ranks`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from tensafe_api.reasons import Reason

if TYPE_CHECKING:  # the driver of a cluster's attempt has no use for what it needs
    from tensorguard.aggregation.channel import Channel

T = TypeVar("T")
_MESSAGE_BYTES = 1024
_SEPARATOR = "\n"
_OF_MEMORY = {
    "ray": "Ray ended a process, since its machine was about to run out of memory: raise spec.cluster.worker.memory",
    "torch": "the GPU has too little memory: lower spec.training.microBatchSize or spec.training.maxLength",
}
_ANY_MEMORY = "there is too little memory"


class AttemptFailed(Exception):
    """The attempt is over and would fail again in the same way. `str()` is a sentence."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def run_on_all_ranks(channel: Channel, part: Callable[[], T]) -> T:
    """What `part` returns, once it has succeeded on every worker.

    Raises:
        AttemptFailed: on every worker, where it failed on any; with the failure of the lowest rank.
    """
    result, failure = _attempt(part)
    words = _SEPARATOR.join((failure.reason, str(failure))).encode()[:_MESSAGE_BYTES] if failure else b""
    for peer, message in enumerate(channel.all_gather(words.ljust(_MESSAGE_BYTES, b"\0"))):
        text = message.rstrip(b"\0").decode(errors="ignore")
        if text:
            reason, _, sentence = text.partition(_SEPARATOR)
            cause = failure.__cause__ if failure is not None else None
            raise AttemptFailed(
                Reason(reason), sentence if channel.size == 1 else f"{sentence} (worker {peer})"
            ) from cause
    assert result is not None
    return result


def _attempt(part: Callable[[], T]) -> tuple[T | None, AttemptFailed | None]:
    try:
        return part(), None
    except AttemptFailed as failure:
        return None, failure
    except Exception as error:
        failure = AttemptFailed(*describe_error(error))
        failure.__cause__ = None if hasattr(error, "reason") else error
        return None, failure


def describe_error(error: Exception) -> tuple[Reason, str]:
    """What may be said of an error: our own carry a `reason` and a sentence without records; of others only the kind,
    since their words may quote a record. Their traceback goes into a file that the run's owner alone can read.
    """
    if isinstance(reason := getattr(error, "reason", None), Reason):
        return reason, " ".join(str(error).split())
    if type(error).__name__ == "OutOfMemoryError":  # Ray's and PyTorch's are called so, and neither is imported here
        return Reason.WORKER_LOST, _OF_MEMORY.get(type(error).__module__.partition(".")[0], _ANY_MEMORY)
    return Reason.INTERNAL_ERROR, f"{type(error).__name__}; see the errors-*.log in the run's folder for where"
