"""Where a checkpoint stands: its step, and the ledger that it was written under. JSON, so reading it needs no torch."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from tensorguard.checkpoint.store import CheckpointCorrupt

TRAINER_STATE = "trainer_state.json"


@dataclass(frozen=True)
class TrainerState:
    """Where a checkpoint stands. `ledger_head` and `ledger_length` are of the ledger when it was written: a shorter one
    is refused.
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


def parse_trainer_state(files: dict[str, bytes], where: str) -> TrainerState:
    """The place at which a checkpoint stands."""
    try:
        return TrainerState.parse(files[TRAINER_STATE])
    except (KeyError, ValueError, TypeError) as error:
        raise CheckpointCorrupt(
            f"{where} has no readable {TRAINER_STATE}; move it away to resume from another one"
        ) from error
