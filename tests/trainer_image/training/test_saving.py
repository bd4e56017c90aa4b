"""What a checkpoint consists of, and that it is written before the ledger records it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyrage
import pytest

from tensafe_api.statement.contents import canonical_json, digest
from tensorguard.checkpoint.encryption import Recipients, parse_recipients
from tensorguard.checkpoint.layout import ADAPTER_CONFIG, ADAPTER_WEIGHTS, MODEL_CARD, STATEMENT_FILE, STATEMENT_PAGE
from tensorguard.checkpoint.optimizer_state import OPTIMIZER
from tensorguard.checkpoint.store import CheckpointStore
from tensorguard.checkpoint.trainer_state import TRAINER_STATE, TrainerState
from tensorguard.ledger.contract import Fenced, PublishedCheckpoint
from tensorguard.training import checkpointing
from tensorguard.training.checkpointing import Checkpointer

WEIGHTS = b"tensors of adapter of model"


class Ledger:
    """A ledger of attempt 2, incarnation 3, that records checkpoints."""

    max_checkpoints: int | None = None

    def __init__(self) -> None:
        self.checkpoints: tuple[PublishedCheckpoint, ...] = ()
        self.held_as = (2, 3)

    def read(self) -> Any:
        attempt, incarnation = self.held_as
        return SimpleNamespace(
            spec=SimpleNamespace(job_uid="uid"),
            attempt=attempt,
            incarnation=incarnation,
            head="ab" * 32,
            length=17,
            checkpoints=self.checkpoints,
        )

    def record_checkpoint(self, checkpoint: PublishedCheckpoint) -> None:
        self.checkpoints += (checkpoint,)


class Saving:
    """A checkpointer whose model, optimizer and statement are texts."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ledger, self.store = Ledger(), CheckpointStore(str(tmp_path))
        self.checked: list[tuple[Any, Any]] = []
        self.asked: list[tuple[Any, ...]] = []
        self.keep = 2
        self.recipients: Recipients | None = None

        def tensors(state: str, metadata: dict[str, str]) -> bytes:
            assert metadata == {"format": "pt"}, "as the Hugging Face libraries expect"
            return f"tensors of {state}".encode()

        monkeypatch.setattr(checkpointing, "save_tensors", tensors)
        monkeypatch.setattr(checkpointing, "adapter_state", lambda model: f"adapter of {model}")
        monkeypatch.setattr(checkpointing, "adapter_config", lambda model, source: {"z": source, "a": model})
        monkeypatch.setattr(checkpointing, "dump_optimizer", lambda optimizer: f"state of {optimizer}".encode())
        monkeypatch.setattr(checkpointing, "build_statement", lambda inputs: {"made of": inputs})
        monkeypatch.setattr(checkpointing, "render_markdown", lambda document: f"page of {document['made of']} ε")
        monkeypatch.setattr(
            checkpointing,
            "model_card",
            lambda document, source, use, encrypted: (
                f"{'encrypted ' * encrypted}card of {document['made of']} and {source}"
            ),
        )
        monkeypatch.setattr(
            checkpointing, "check_checkpoints", lambda store, ledger: self.checked.append((store, ledger))
        )

    def save(self, step: int, **how: bool) -> PublishedCheckpoint | None:
        def statement_inputs(state: Any, step: int, adapter: str) -> str:
            self.asked.append((state.length, step, adapter))
            return "inputs"

        parts: Any = {"source": "source", "model": "model", "optimizer": "optimizer"}
        ledger: Any = self.ledger
        inputs: Any = statement_inputs
        one = Checkpointer(self.store, ledger, statement_inputs=inputs, keep=self.keep, acquired_as=(2, 3), **parts)
        one.recipients = self.recipients
        return one.save(step, **how)


@pytest.fixture
def saving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Saving:
    return Saving(tmp_path, monkeypatch)


def test_files_of_a_checkpoint(saving: Saving) -> None:
    published = saving.save(7)
    assert published is not None
    files = saving.store.read("step-000007-a2i3", published.digest)
    assert files.pop(ADAPTER_CONFIG).decode() == '{\n "a": "model",\n "z": "source"\n}'
    assert TrainerState.parse(files.pop(TRAINER_STATE)) == TrainerState("uid", 7, 2, 3, "ab" * 32, 17)
    statement = canonical_json({"made of": "inputs"})
    assert files == {
        ADAPTER_WEIGHTS: WEIGHTS,
        OPTIMIZER: b"state of optimizer",
        STATEMENT_FILE: statement,
        STATEMENT_PAGE: "page of inputs ε".encode(),
        MODEL_CARD: b"card of inputs and source",
    }
    assert json.loads(statement)
    assert saving.asked == [(17, 7, digest(WEIGHTS))]


def test_ledger_records_what_was_written(saving: Saving, tmp_path: Path) -> None:
    published = saving.save(7)
    assert published is not None
    assert saving.ledger.checkpoints == (published,)
    assert (published.step, published.attempt, published.final) == (7, 2, False)
    assert published.uri == f"file://{tmp_path}/step-000007-a2i3"
    assert published.statement_digest == digest(canonical_json({"made of": "inputs"}))
    assert saving.checked == [(saving.store, saving.ledger)]


def test_final_checkpoint_has_its_own_name(saving: Saving) -> None:
    published = saving.save(9, final=True)
    assert published is not None and published.final
    assert saving.store.names() == ["final"]


def test_final_checkpoint_has_no_optimizer_state(saving: Saving) -> None:
    """No step follows it, and the state is private to the run."""
    saving.save(9)
    saving.save(9, final=True)
    running, final = (saving.store.read(name).keys() for name in ("step-000009-a2i3", "final"))
    assert running - final == {OPTIMIZER} and not final - running


def test_only_what_everyone_may_read_is_stored_in_clear(saving: Saving) -> None:
    identity = pyrage.x25519.Identity.generate()
    saving.recipients = parse_recipients([str(identity.to_public())], "here")
    saving.save(7)
    files = saving.store.read("step-000007-a2i3")
    readable = {ADAPTER_CONFIG, MODEL_CARD, STATEMENT_FILE, STATEMENT_PAGE, TRAINER_STATE}
    assert files.keys() == {*readable, f"{ADAPTER_WEIGHTS}.age", f"{OPTIMIZER}.age"}
    assert pyrage.decrypt(files[f"{ADAPTER_WEIGHTS}.age"], [identity]) == WEIGHTS
    assert pyrage.decrypt(files[f"{OPTIMIZER}.age"], [identity]) == b"state of optimizer"
    assert files[MODEL_CARD] == b"encrypted card of inputs and source"
    assert saving.asked == [(17, 7, digest(WEIGHTS))], "the statement is about the adapter that a recipient decrypts"


def test_checkpoint_is_complete_before_the_ledger_records_it(saving: Saving, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    monkeypatch.setattr(saving.ledger, "record_checkpoint", lambda published: seen.append(saving.store.names()))
    saving.save(7)
    assert seen == [["step-000007-a2i3"]]


def test_checkpoints_are_compared_with_the_ledger_before_one_is_written(
    saving: Saving, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(store: Any, ledger: Any) -> None:
        raise Fenced("rolled back")

    monkeypatch.setattr(checkpointing, "check_checkpoints", refuse)
    with pytest.raises(Fenced, match="rolled back"):
        saving.save(7)
    assert saving.store.names() == [] and saving.ledger.checkpoints == ()


def test_older_checkpoints_are_removed(saving: Saving) -> None:
    for step in (3, 6, 9):
        saving.save(step)
    assert saving.store.names() == ["step-000006-a2i3", "step-000009-a2i3"]


@pytest.mark.parametrize("held_as", [(2, 4), (3, 3), (3, 1)])
def test_incarnation_that_has_been_replaced_writes_nothing(held_as: tuple[int, int], saving: Saving) -> None:
    saving.ledger.held_as = held_as
    with pytest.raises(Fenced, match=f"attempt {held_as[0]}, incarnation {held_as[1]} has acquired the ledger"):
        saving.save(7)
    assert saving.store.names() == [] and saving.ledger.checkpoints == ()


def test_last_place_in_a_ledger_is_for_the_final_checkpoint(saving: Saving) -> None:
    saving.ledger.max_checkpoints = 3
    assert saving.save(1) is not None and saving.save(2) is not None
    assert saving.save(3) is None
    assert len(saving.ledger.checkpoints) == len(saving.store.names()) == 2
    assert saving.save(4, final=True) is not None
