"""Makes a failure of one rank the failure of all ranks, with one message.

In comes a function that every rank calls before the first step; out comes its result, or `AttemptFailed` on every rank.
A rank that raised alone would leave the others waiting in a collective, and Ray would restart the worker group only to
fail in the same way. So what can fail in the same way again (a model that cannot be loaded, a corrupt checkpoint, an
edited ledger) runs inside `run_on_all_ranks`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from tensafe_api.reasons import Reason

if TYPE_CHECKING:  # the driver of an attempt in a cluster imports this module and must not load PyTorch
    from tensorguard.aggregation.channel import Channel

T = TypeVar("T")
_MESSAGE_BYTES = 1024
_SEPARATOR = "\n"
_OUT_OF_MEMORY = {
    "ray": "Ray killed a process because its machine was about to run out of memory: raise spec.cluster.worker.memory",
    "torch": "the GPU has too little memory: lower spec.training.microBatchSize or spec.training.maxLength",
}
_OUT_OF_ANY_MEMORY = "there is too little memory"


class AttemptFailed(Exception):
    """The attempt failed, and a restart would fail in the same way. `str()` is a sentence."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def run_on_all_ranks(channel: Channel, call: Callable[[], T]) -> T:
    """Run `call`, which must not return None, and return its result once it has succeeded on every rank.

    Raises:
        AttemptFailed: on every rank, if it failed on any; with the failure of the lowest rank that failed with a reason
            of this project. Another error may only follow from that one.
    """
    result, failure = _attempt(call)
    text = _SEPARATOR.join((failure.reason, str(failure))).encode()[:_MESSAGE_BYTES] if failure else b""
    messages = channel.all_gather(text.ljust(_MESSAGE_BYTES, b"\0"))
    failures = [(rank, *_parse(message)) for rank, message in enumerate(messages) if message.strip(b"\0")]
    if failures:
        named = (each for each in failures if each[1] is not Reason.INTERNAL_ERROR)
        rank, reason, sentence = next(named, failures[0])
        cause = failure.__cause__ if failure is not None else None
        raise AttemptFailed(reason, sentence if channel.size == 1 else f"{sentence} (worker {rank})") from cause
    assert result is not None
    return result


def _parse(message: bytes) -> tuple[Reason, str]:
    reason, _, sentence = message.rstrip(b"\0").decode(errors="ignore").partition(_SEPARATOR)
    return Reason(reason), sentence


def _attempt(call: Callable[[], T]) -> tuple[T | None, AttemptFailed | None]:
    try:
        return call(), None
    except AttemptFailed as error:
        return None, error
    except Exception as error:
        failure = AttemptFailed(*describe_error(error))
        failure.__cause__ = None if hasattr(error, "reason") else error
        return None, failure


def describe_error(error: Exception) -> tuple[Reason, str]:
    """The reason and a sentence that may be published: it quotes no record.

    Errors of this project carry a `reason` and a sentence without records. Of any other error only the type is named,
    since its message may quote a record. Its traceback goes to a file that only the owner of the run can read.
    """
    if isinstance(reason := getattr(error, "reason", None), Reason):
        return reason, " ".join(str(error).split())
    if type(error).__name__ == "OutOfMemoryError":  # the name in Ray and in PyTorch; neither is imported here
        return Reason.WORKER_LOST, _OUT_OF_MEMORY.get(type(error).__module__.partition(".")[0], _OUT_OF_ANY_MEMORY)
    return Reason.INTERNAL_ERROR, f"{type(error).__name__}; errors-*.log in the run's private folder has the traceback"
