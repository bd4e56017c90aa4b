"""What a mutation is, and the folders that mutations name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    """In `file` (relative to the root of the project), replaces `old`, which occurs exactly once, by `new`."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutation:
    """A mistake, and the tests (pytest node ids) that must fail. Each of them must fail by itself."""

    name: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]


TRAINER = "trainer_image/tensorguard/"
API = "crds/tensafe_api/"
OPERATOR = "operator/tensafe_operator/"
DATA_TESTS = "tests/trainer_image/data/"
TRAINER_TESTS = "tests/trainer_image/"
PRIVACY_TESTS = "tests/trainer_image/privacy/"
AGGREGATION_TESTS = "tests/trainer_image/aggregation/"
MODEL_TESTS = "tests/trainer_image/models/"
LEDGER_TESTS = "tests/trainer_image/ledger/"
TRAINING_TESTS = "tests/trainer_image/training/"
TRACKER_TESTS = "tests/trainer_image/trackers/"
