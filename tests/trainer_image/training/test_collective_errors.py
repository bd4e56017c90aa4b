"""What is reported of an error, on every rank: its own sentence, the fix for a lack of memory, or type and line."""

from __future__ import annotations

import contextlib
import importlib
import re
from typing import Any

import pytest
import torch
from ray.exceptions import OutOfMemoryError, RayTaskError

from tensafe_api.reasons import Reason
from tensorguard.ledger.contract import LedgerBusy
from tensorguard.training.collective_errors import AttemptFailed, describe_error, run_on_all_ranks, would_fail_again


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        (OutOfMemoryError("node a of patient 7"), "raise spec.cluster.worker.memory"),
        (torch.OutOfMemoryError("CUDA out of memory, patient 7"), "lower spec.training.microBatchSize"),
    ],
)
def test_out_of_memory_names_the_field_that_fixes_it(error: Exception, fix: str) -> None:
    """On real pods Ray's memory monitor killed the reading of the data, and the message did not show what to do."""
    reason, sentence = describe_error(error)
    assert reason is Reason.WORKER_LOST
    assert fix in sentence
    assert "patient" not in sentence


def caught(call: Any) -> Exception:
    with pytest.raises(Exception) as found:
        call()
    return found.value


def test_only_type_and_line_of_a_foreign_error_are_reported() -> None:
    reason, sentence = describe_error(caught(fails(KeyError("patient 7"))))
    assert reason is Reason.INTERNAL_ERROR
    assert re.fullmatch(rf"KeyError \({__file__}, line \d+\)", sentence)
    assert describe_error(KeyError("patient 7")) == (Reason.INTERNAL_ERROR, "KeyError")


def test_line_of_compiled_code_is_that_of_its_caller() -> None:
    error = caught(lambda: exec(compile("\n\n\nraise KeyError('patient 7')", "arrow/error.pxi", "exec")))
    assert re.fullmatch(rf"KeyError \({__file__}, line \d+\)", describe_error(error)[1])


def test_message_of_a_failed_import_is_reported() -> None:
    """It is about modules, and names the file in which a name is missing."""
    _, sentence = describe_error(caught(lambda: importlib.import_module("no_such_module")))
    assert sentence.startswith("ModuleNotFoundError: No module named 'no_such_module' (")


def test_error_from_a_process_of_ray_is_described_as_there() -> None:
    error = RayTaskError("read", "a traceback with patient 7", KeyError("patient 7")).as_instanceof_cause()
    assert describe_error(error) == (Reason.INTERNAL_ERROR, "KeyError")


def test_only_a_failed_import_is_known_to_fail_again() -> None:
    assert would_fail_again(caught(lambda: importlib.import_module("no_such_module")))
    assert not would_fail_again(caught(fails(ConnectionError("lost"))))


def test_lack_of_memory_of_another_library_is_named() -> None:
    kind = type("OutOfMemoryError", (Exception,), {"__module__": "other.library"})
    assert describe_error(kind("patient 7")) == (Reason.WORKER_LOST, "there is too little memory")


class Ranks:
    """The channel of one rank. The others send the messages of `others`."""

    def __init__(self, rank: int, *others: bytes) -> None:
        self.rank, self.size, self.others = rank, len(others) + 1, list(others)
        self.sent = b""

    def all_gather(self, message: bytes) -> list[bytes]:
        self.sent = message
        return [*self.others[: self.rank], message, *self.others[self.rank :]]


def fails(error: Exception) -> Any:
    def call() -> None:
        raise error

    return call


def sent_by(call: Any) -> bytes:
    """The message of a rank whose peers have no failure."""
    channel: Any = Ranks(0, b"\0" * 1024)
    with contextlib.suppress(AttemptFailed):
        run_on_all_ranks(channel, call)
    return bytes(channel.sent)


FAILURE = AttemptFailed(Reason.MODEL_UNSUPPORTED, "spec.model.name: no such layer")


def test_result_is_returned_once_every_rank_has_succeeded() -> None:
    channel: Any = Ranks(1, b"\0" * 1024, b"\0" * 1024)
    assert run_on_all_ranks(channel, lambda: "result") == "result"
    assert channel.sent == b"\0" * 1024


def test_failure_of_another_rank_is_raised_on_this_one() -> None:
    channel: Any = Ranks(0, b"\0" * 1024, sent_by(fails(FAILURE)))
    with pytest.raises(AttemptFailed, match=r"^spec\.model\.name: no such layer \(worker 2\)$") as raised:
        run_on_all_ranks(channel, lambda: "result")
    assert raised.value.reason is Reason.MODEL_UNSUPPORTED
    assert raised.value.__cause__ is None


def test_failure_of_the_lowest_rank_is_raised() -> None:
    channel: Any = Ranks(1, sent_by(fails(FAILURE)), b"\0" * 1024)
    with pytest.raises(AttemptFailed, match=r"no such layer \(worker 0\)"):
        run_on_all_ranks(channel, fails(KeyError("patient 7")))


def test_failure_of_a_single_worker_names_no_worker() -> None:
    channel: Any = Ranks(0)
    with pytest.raises(AttemptFailed, match=r"^spec\.model\.name: no such layer$"):
        run_on_all_ranks(channel, fails(FAILURE))


def test_foreign_error_is_the_cause_on_its_own_rank_and_its_text_stays_there() -> None:
    channel: Any = Ranks(0, b"\0" * 1024)
    error = KeyError("patient 7")
    file = r"errors-rank0\.log in the run's private folder has the traceback"
    with pytest.raises(AttemptFailed, match=rf"^KeyError \(.*\); {file} \(worker 0\)$") as raised:
        run_on_all_ranks(channel, fails(error))
    assert raised.value.__cause__ is error and raised.value.reason is Reason.INTERNAL_ERROR
    assert b"patient" not in channel.sent


def test_error_of_this_project_needs_no_traceback() -> None:
    channel: Any = Ranks(0)
    with pytest.raises(AttemptFailed, match="the ledger is locked") as raised:
        run_on_all_ranks(channel, fails(LedgerBusy("the ledger\n is locked")))
    assert raised.value.__cause__ is None and raised.value.reason is Reason.LEDGER_LOCKED


def test_messages_of_all_ranks_have_one_length() -> None:
    long = AttemptFailed(Reason.MODEL_UNSUPPORTED, "é" * 4000)
    messages = {len(sent_by(call)) for call in (lambda: "result", fails(FAILURE), fails(long))}
    assert messages == {1024}
    channel: Any = Ranks(0, sent_by(fails(long)))
    with pytest.raises(AttemptFailed, match=r"^é+ \(worker 1\)$"):
        run_on_all_ranks(channel, lambda: "result")


def test_sentence_is_received_as_it_was_written() -> None:
    written = AttemptFailed(Reason.MODEL_UNSUPPORTED, "two\nlines with X")
    channel: Any = Ranks(0, sent_by(fails(written)))
    with pytest.raises(AttemptFailed, match=r"^two\nlines with X \(worker 1\)$"):
        run_on_all_ranks(channel, lambda: "result")
