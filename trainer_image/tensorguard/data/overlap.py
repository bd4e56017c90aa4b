"""Whether a public evaluation set is training data, by the content of its records.

In come the records of the evaluation set, then those of the private data set; out goes one answer. What is measured on
a public set is shown, so a set that is private must not be declared public. That it is public remains the word of the
job's author: only data that are in the private data set too can be recognised.

The answer is yes if more than half of the different records are in the private data set, and at least `MIN_RECORDS`
are compared. One private record changes the answer for none but the few sets that have almost exactly half of their
records in common. A smaller set is not compared: the answer would tell whether a certain record is private. Nothing
else about the records in common is returned, logged or counted in a message.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tensafe_api.tasks import COLUMNS
from tensorguard.data import keys
from tensorguard.data.errors import DataError

_LABELS = frozenset(name for name, column in COLUMNS.items() if column.content in ("label", "word labels"))
"""The roles of labels. They are not compared: a private text is private with any label, and in any spelling of it."""
MIN_RECORDS = 8
"""The number of different records from which on an evaluation set is compared."""


class Overlap:
    """The records of an evaluation set that are also in the private data set.

    Args:
        contents: `content_digests` of the evaluation set.
    """

    def __init__(self, contents: np.ndarray) -> None:
        self._contents = np.unique(contents)
        self.found = np.empty(0, dtype=np.uint64)
        """Digests of the records that both have. They are private."""

    @classmethod
    def load(cls, evaluation: Path) -> Overlap:
        """The overlap with the evaluation set in this file, whose contents `save_contents` has saved."""
        return cls(np.load(_contents_file(evaluation)))

    def add(self, values: Mapping[str, Sequence[str | None]]) -> None:
        """Compare more private records, given as role -> values."""
        digests = content_digests(values)
        self.add_found(digests[np.isin(digests, self._contents)])

    def add_found(self, found: np.ndarray) -> None:
        """Add what another process has found."""
        self.found = np.union1d(self.found, found)

    def check(self, where: str) -> None:
        """Raise DataError if the evaluation set is training data. `where` is the field that names it."""
        if len(self._contents) >= MIN_RECORDS and 2 * len(self.found) > len(self._contents):
            raise DataError(
                f"{where}: most of its records are also in spec.dataset, so it is private: choose other data, or set "
                "spec.evaluation.visibility to Private"
            )


def content_digests(values: Mapping[str, Sequence[str | None]]) -> np.ndarray:
    """A digest of the content of each record, uint64 [n]: of its values by role, without labels and the user.

    The values are those of `raw_table`, the same in every file format. White space in a text counts as one space, and
    none at its ends, because most tokenizers do not distinguish it.
    """
    roles = sorted(values.keys() - _LABELS)
    records = zip(*(values[role] for role in roles))
    found = [hashlib.blake2b(_content(record), digest_size=8).digest() for record in records]
    return np.frombuffer(b"".join(found), dtype=np.uint64)


def save_contents(evaluation: Path, contents: np.ndarray) -> None:
    """Save `content_digests` of the evaluation set in this file, beside it."""
    np.save(_contents_file(evaluation), contents)


def _contents_file(evaluation: Path) -> Path:
    return evaluation.with_suffix(".contents.npy")


def _content(record: Sequence[str | None]) -> bytes:
    """The content of one record."""
    return keys.content_of([None if value is None else " ".join(value.split()) for value in record])
