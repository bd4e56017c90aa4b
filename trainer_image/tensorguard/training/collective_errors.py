"""Makes a failure of one rank the failure of all ranks, with one message.

In comes a function that every rank calls before the first step; out comes its result, or `AttemptFailed` on every rank.
A rank that raised alone would leave the others waiting in a collective, and Ray would restart the worker group only to
fail in the same way. So what can fail in the same way again (a model that cannot be loaded, a corrupt checkpoint, an
edited ledger) runs inside `run_on_all_ranks`.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tensafe_api.reasons import Reason
from tensorguard.disk_full import describe_full_disk
from tensorguard.training.config import TRACEBACKS

if TYPE_CHECKING:  # the driver of an attempt in a cluster imports this module and must not load PyTorch
    from tensorguard.aggregation.channel import Channel

T = TypeVar("T")
_MESSAGE_BYTES = 1024
_SEPARATOR = "\n"
RAY_OUT_OF_MEMORY = (
    "Ray killed a process because its machine was about to run out of memory: raise spec.cluster.worker.memory"
)
_OUT_OF_MEMORY = {
    "ray": RAY_OUT_OF_MEMORY,
    "torch": "the GPU has too little memory: lower spec.training.microBatchSize or spec.training.maxLength",
}
_OUT_OF_ANY_MEMORY = "there is too little memory"
_RAY_CRASHED = "a process of Ray was killed, or has crashed: often its machine has too little memory"
_CRASHED = ("WorkerCrashedError", "ActorDiedError", "LocalRayletDiedError")
"""Names of Ray's errors for a process that has ended without an error."""
_LONGEST_MESSAGE = 300


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
    result, failure = _attempt(call, channel.rank)
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


def _attempt(call: Callable[[], T], rank: int) -> tuple[T | None, AttemptFailed | None]:
    try:
        return call(), None
    except AttemptFailed as error:
        return None, error
    except Exception as error:
        reason, sentence = describe_error(error)
        ours = hasattr(error, "reason")
        if reason is Reason.INTERNAL_ERROR and not ours:  # the traceback follows when this rank has left the collective
            sentence += f"; {TRACEBACKS.format(process=f'rank{rank}')} in the run's private folder has the traceback"
        failure = AttemptFailed(reason, sentence)
        failure.__cause__ = None if ours else error
        return None, failure


def describe_error(error: BaseException) -> tuple[Reason, str]:
    """The reason and a sentence that may be published: it quotes no record.

    Errors of this project carry a `reason` and a sentence without records. Of any other error only the type and the
    line are named, since its message may quote a record. That of an import is about modules, and is quoted. A full disk
    is the reason whatever was raised because of it.
    """
    reason, full = getattr(error, "reason", None), describe_full_disk(error)
    if isinstance(reason, Reason):
        sentence = " ".join(str(error).split())
        return (Reason.DISK_FULL, f"{full} ({sentence})") if full else (reason, sentence)
    if full:
        return Reason.DISK_FULL, f"{full}: free space there, and resume"
    if type(error).__name__ == "OutOfMemoryError":  # the name in Ray and in PyTorch; neither is imported here
        return Reason.WORKER_LOST, _OUT_OF_MEMORY.get(type(error).__module__.partition(".")[0], _OUT_OF_ANY_MEMORY)
    if type(error).__name__ in _CRASHED:
        return Reason.WORKER_LOST, _RAY_CRASHED
    cause = getattr(error, "cause", None)  # what a process of Ray raised
    error = cause if isinstance(cause, Exception) else error
    sentence = type(error).__name__
    if isinstance(error, ImportError):
        sentence += f": {' '.join(str(error).split())[:_LONGEST_MESSAGE]}"
    if place := _place_of(error):
        sentence += f" ({place})"
    return Reason.INTERNAL_ERROR, sentence


def would_fail_again(error: BaseException) -> bool:
    """Whether a restart of the workers fails in the same way: a module cannot be imported, or a disk is full."""
    if describe_full_disk(error):
        return True
    return isinstance(error, ImportError | SyntaxError) or _import_of(error) is not None


def _place_of(error: BaseException) -> str:
    """The file and the line that raised `error`; that of the module where one was being imported. It may be empty."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    found = _import_of(error) or next(_innermost_first(error), None)
    return f"{found.filename}, line {found.lineno}" if found else ""


def _import_of(error: BaseException) -> traceback.FrameSummary | None:
    """The line of a module outside of all functions, which an import ran, if `error` was raised there."""
    return next((frame for frame in _innermost_first(error) if frame.name == "<module>"), None)


def _innermost_first(error: BaseException) -> Iterator[traceback.FrameSummary]:
    """The lines through which `error` came. Compiled code names files that do not exist here: they are left out."""
    frames = reversed(traceback.extract_tb(error.__traceback__))
    return (frame for frame in frames if Path(frame.filename).exists())
