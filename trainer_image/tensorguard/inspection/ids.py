"""Ids that look alike: two spellings of one user would be two units, and the privacy claim would be wrong.

In: the ids of all records, in the form in which they are compared (`values.id_of`). Out: how many look alike, by kind.
Of each id only hashes are kept. An id that looks like another may be another user all the same: a person has to look.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

MISSING = frozenset(
    (
        *("null", "none", "nil", "na", "n/a", "#n/a", "<na>", "nan", "nat", "\\n", "undefined", "unknown", "missing"),
        *("anonymous", "-", "--", "?", ".", "0", "-1"),
    )
)
"""Ids that usually mean that there is none."""
ROUNDED_DIGITS, ROUNDED_ZEROS = 6, 4
"""An integer of so many digits that ends in so many zeros looks rounded. One in 10,000 does so by chance, ..."""
ROUNDED_SHARE = 0.01
"""... so it is reported if this share of all ids does."""
MAX_EXAMPLES, MAX_TEXTS = 5, 100_000
_PARTS = re.compile(r"\d+|[^\W\d_]+")
_COMPACT_ROWS = 1 << 20


@dataclass(frozen=True)
class LookAlikes:
    """Ids that look alike in one way.

    Attributes:
        kind: Spelling, Prefix, Rounded or Missing.
        ids: how many.
        records: how many records have such an id; None where they are not counted.
        examples: some of the ids; None where they may not be shown.
    """

    kind: str
    ids: int
    records: int | None = None
    examples: tuple[str, ...] | None = None

    @property
    def description(self) -> str:
        """What is alike: completes "some ids ..."."""
        return _DESCRIPTIONS[self.kind]


_DESCRIPTIONS = {
    "Spelling": "differ from another one only in punctuation, spaces or leading zeros, as p-007 and p7",
    "Prefix": "differ from another one only by letters before the number, as Patient/3 and 3",
    "Rounded": "are long numbers that end in zeros, as a spreadsheet or a float of 32 bits rounds them",
    "Missing": "look like a missing value, as unknown, NA or 0: all such records are one user",
}


class _Facts(NamedTuple):
    """Hashes of an id, of its spelling without what does not matter, and of what follows its prefix (0: no prefix)."""

    id: int
    spelling: int
    bare: int
    rounded: int


class IdCounts:
    """Counts ids. `keep`: whether texts of ids are kept, at most MAX_TEXTS of them, for examples."""

    def __init__(self, keep: bool = False) -> None:
        self._rows = np.empty((0, len(_Facts._fields)), np.uint64)
        self._new: list[_Facts] = []
        self._missing: Counter[str] = Counter()
        self._keep = keep
        self._texts: dict[int, str] = {}

    def add(self, ids: Iterable[str | None]) -> None:
        """Add the ids of some records."""
        for text, count in Counter(ids).items():
            if text is None:
                continue
            facts = _facts_of(text)
            self._new.append(facts)
            if text in MISSING:
                self._missing[text] += count
            if self._keep and len(self._texts) < MAX_TEXTS:
                self._texts.setdefault(facts.id, text)
        if len(self._new) >= _COMPACT_ROWS:
            self._compact()

    def distinct(self) -> int:
        """How many different ids there are."""
        self._compact()
        return len(self._rows)

    def alike(self) -> tuple[LookAlikes, ...]:
        """The ids that look alike, by kind."""
        self._compact()
        ids, spelling, bare, rounded = self._rows.T
        _, inverse, counts = np.unique(spelling, return_inverse=True, return_counts=True)
        several = counts[inverse] > 1
        prefixed = (bare != 0) & np.isin(bare, spelling[bare == 0])
        others = np.isin(spelling, bare[prefixed]) & (bare == 0)
        round_numbers = rounded == 1
        if np.count_nonzero(round_numbers) < max(2, ROUNDED_SHARE * len(ids)):
            round_numbers = np.zeros(len(ids), bool)
        found = [
            LookAlikes("Spelling", int(several.sum()), None, self._examples(several, spelling)),
            LookAlikes(
                "Prefix",
                int(prefixed.sum()),
                None,
                self._examples(prefixed | others, np.where(bare == 0, spelling, bare)),
            ),
            LookAlikes("Rounded", int(round_numbers.sum()), None, self._examples(round_numbers, ids)),
            LookAlikes(
                "Missing",
                len(self._missing),
                sum(self._missing.values()),
                tuple(sorted(self._missing)) if self._keep else None,
            ),
        ]
        return tuple(each for each in found if each.ids)

    def _examples(self, selected: np.ndarray, group: np.ndarray) -> tuple[str, ...] | None:
        """Texts of some of the selected ids; those of one group follow each other."""
        if not self._keep:
            return None
        order = np.flatnonzero(selected)
        order = order[np.argsort(group[order], kind="stable")]
        texts = (self._texts.get(int(self._rows[i, 0])) for i in order[: 2 * MAX_EXAMPLES])
        return tuple(text for text in texts if text is not None)

    def _compact(self) -> None:
        """Keep one row for each id."""
        rows = np.vstack([self._rows, np.array(self._new, np.uint64).reshape(-1, self._rows.shape[1])])
        self._rows = rows[np.unique(rows[:, 0], return_index=True)[1]]
        self._new = []


@lru_cache(maxsize=1 << 16)
def _facts_of(text: str) -> _Facts:
    parts = _PARTS.findall(text)
    start = next((i for i, part in enumerate(parts) if part.isdigit()), 0)
    rounded = len(text) >= ROUNDED_DIGITS and text.isdigit() and text.endswith("0" * ROUNDED_ZEROS)
    bare = _hash(spelling_of(parts[start:])) if start else 0
    return _Facts(_hash(text), _hash(spelling_of(parts) or text), bare, int(rounded))


def spelling_of(parts: Iterable[str]) -> str:
    """The letters and numbers of an id without leading zeros, and without what divides them but for two numbers."""
    spelling = ""
    for part in parts:
        number = part.isdigit()
        divided = "-" if number and spelling[-1:].isdigit() else ""
        spelling += divided + ((part.lstrip("0") or "0") if number else part)
    return spelling


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
