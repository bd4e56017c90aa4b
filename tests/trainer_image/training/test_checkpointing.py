"""The names of checkpoints, which of them are removed, and which one a resume starts from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tensorguard.checkpoint.layout import ADAPTER_WEIGHTS
from tensorguard.checkpoint.optimizer_state import OPTIMIZER
from tensorguard.checkpoint.store import CheckpointError, CheckpointStore
from tensorguard.checkpoint.trainer_state import TRAINER_STATE
from tensorguard.ledger.contract import PublishedCheckpoint
from tensorguard.training import checkpointing
from tensorguard.training.checkpointing import Checkpointer, checkpoint_name, latest_checkpoint, restore_checkpoint
from tensorguard.training.rollback_check import check_checkpoint


def published(uri: str, *, final: bool = False) -> PublishedCheckpoint:
    return PublishedCheckpoint(4, 1, uri, "sha256:a", "sha256:b", final)


@pytest.mark.parametrize(
    "uri",
    [
        "s3://bucket/claims/step-4",
        "s3://bucket/claims/step-4/",
        "file:///runs/step-4//",
        "step-4",
    ],
)
def test_name_of_a_checkpoint_is_the_last_part_of_its_uri(uri: str) -> None:
    assert checkpoint_name(published(uri)) == "step-4"


def test_name_of_a_checkpoint_is_whole() -> None:
    assert checkpoint_name(published("s3://bucket/X/step-4X/")) == "step-4X"


class Store:
    """The names of the checkpoints that exist."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)

    def exists(self, name: str) -> bool:
        return name in self.names

    def remove(self, name: str) -> None:
        self.names.remove(name)


def ledger_with(*names: str) -> Any:
    class State:
        checkpoints = tuple(published(f"s3://b/{name}", final=name == "final") for name in names)

        def read(self) -> State:
            return self

    return State()


def kept(exist: tuple[str, ...], recorded: tuple[str, ...], *, keep: int) -> list[str]:
    """The checkpoints that are left of those that exist, after the last of those that are recorded was written."""
    store: Any = Store(*exist)
    others: Any = {"source": None, "model": None, "optimizer": None, "statement_inputs": None, "acquired_as": (1, 1)}
    Checkpointer(store=store, ledger=ledger_with(*recorded), keep=keep, **others)._prune()
    return list(store.names)


def test_oldest_checkpoints_are_removed() -> None:
    names = ("step-1", "step-2", "step-3", "step-4")
    assert kept(names, names, keep=2) == ["step-3", "step-4"]
    assert kept(names, names, keep=1) == ["step-4"]
    assert kept(names, names, keep=4) == list(names)
    assert kept(names, names, keep=9) == list(names)


def test_final_checkpoint_and_those_of_other_jobs_are_never_removed() -> None:
    exist = ("other", "step-1", "step-2", "final")
    assert kept(exist, ("step-1", "step-2", "final"), keep=1) == ["other", "step-2", "final"]


def test_checkpoint_that_was_written_again_is_the_newest() -> None:
    """After a resume from an older checkpoint, the ledger records the same name a second time."""
    assert kept(("step-1", "step-2"), ("step-1", "step-2", "step-1"), keep=1) == ["step-1"]


def test_missing_checkpoints_do_not_count() -> None:
    exist, recorded = ("step-1", "step-3"), ("step-1", "step-2", "step-3")
    assert kept(exist, recorded, keep=2) == ["step-1", "step-3"]


def test_newest_checkpoint_that_exists_is_resumed() -> None:
    recorded = ledger_with("step-1", "step-2", "step-3")
    store: Any = Store("step-1", "step-2")
    assert latest_checkpoint(store, recorded) == recorded.checkpoints[1]
    store.names.clear()
    assert latest_checkpoint(store, recorded) is None


def test_state_that_cannot_be_read_is_named_by_its_uri(tmp_path: Path) -> None:
    store = CheckpointStore(str(tmp_path))
    store.write("step-4", {TRAINER_STATE: b"{}"})
    ledger: Any = None
    with pytest.raises(CheckpointError, match=f"{tmp_path}/step-4"):
        check_checkpoint(store, "step-4", ledger, "uid")


def test_state_that_cannot_be_restored_is_named_by_its_uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CheckpointStore(str(tmp_path))
    digest = store.write("step-4", {TRAINER_STATE: b"{}", ADAPTER_WEIGHTS: b"", OPTIMIZER: b""})
    for name in ("load_tensors", "load_adapter_state", "load_optimizer"):
        monkeypatch.setattr(checkpointing, name, lambda *_: None)
    nothing: Any = None
    with pytest.raises(CheckpointError, match=f"{tmp_path}/step-4"):
        restore_checkpoint(store, "step-4", digest, nothing, nothing)
