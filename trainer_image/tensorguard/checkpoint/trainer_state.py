"""The step of a checkpoint, and the ledger under which it was written. JSON, so that reading it needs no PyTorch."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from tensorguard.checkpoint.store import CheckpointCorrupt

TRAINER_STATE = "trainer_state.json"


@dataclass(frozen=True)
class TrainerState:
    """The step of a checkpoint and its position in the ledger.

    `ledger_head` and `ledger_length` are those of the ledger when the checkpoint was written. A shorter ledger is
    refused.
    """

    job_uid: str
    step: int
    attempt: int
    incarnation: int
    ledger_head: str
    ledger_length: int

    def dump(self) -> bytes:
        return json.dumps(asdict(self), indent=1).encode()

    @classmethod
    def parse(cls, content: bytes) -> TrainerState:
        return cls(**json.loads(content))


def parse_trainer_state(files: dict[str, bytes], uri: str) -> TrainerState:
    """The trainer state among the files of the checkpoint at `uri`.

    Raises:
        CheckpointCorrupt: if there is none, or it cannot be read.
    """
    try:
        return TrainerState.parse(files[TRAINER_STATE])
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise CheckpointCorrupt(
            f"{uri} has no readable {TRAINER_STATE}; move it away to resume from another checkpoint"
        ) from error
