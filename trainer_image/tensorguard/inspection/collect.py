"""Counts the records of a data set as a training would prepare them.

In: raw tables (`data.raw_table`) and the tokeniser of the job. Each table passes through `split_by_unit`, the function
that prepares a training, for one worker and under a random key. So records, units and what becomes of each record are
those of a training. Out: counts, and 32 bytes for each usable record: the beginnings of the keys of unit and record.
"""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from tensafe_api.resources.job import Spec
from tensafe_api.tasks import COLUMNS
from tensorguard.data import keys
from tensorguard.data.overlap import Overlap
from tensorguard.data.partition import split_by_unit, tokenised
from tensorguard.data.recipe import Recipe
from tensorguard.data.shard import IGNORE_INDEX, Target
from tensorguard.data.tokenise import Example, Tokeniser
from tensorguard.data.unusable import Tally, Unusable, refused_kinds
from tensorguard.data.values import UnusableValue
from tensorguard.inspection.distribution import Distribution, bins_of_lengths, bins_that_double
from tensorguard.inspection.ids import IdCounts
from tensorguard.inspection.inspection import Duplicates, Ids, Lengths, OtherLabels

WHOLE_LENGTH = 1 << 15
"""Records are measured up to this length in tokens: to tokenise a longer text needs too much memory."""
MAX_LABEL_TEXTS = 1_000
"""So many different labels that are no class are counted by themselves."""
_SHOWN = 3


def whole_recipe(recipe: Recipe) -> Recipe:
    """The recipe that cuts no record of up to WHOLE_LENGTH tokens, to measure it."""
    return replace(recipe, max_length=max(WHOLE_LENGTH, recipe.max_length), truncate=True)


def small(table: pa.Table, tokenise: Tokeniser) -> Iterator[pa.Table]:
    """A table in pieces whose examples fit into memory."""
    for start in range(0, len(table), tokenise.batch_rows):
        yield table.slice(start, tokenise.batch_rows)


class Collector:
    """The counts of a data set. Call `add` for each raw table, in pieces of `small`, then read the results.

    Args:
        spec: of the completed job.
        tokenise: of the job.
        whole: the tokeniser for `whole_recipe`; None for inputs without a length.
        overlap: what is compared with the data set; None if nothing is.
        show_records: whether texts of ids, of labels and of some records are kept, to be shown.

    Attributes:
        records, tally, without_id, left_out: as an `Inspection` has them.
        files: by path, the number of records and the sum of their keys.
        shown: the inputs and targets of the first usable records.
    """

    def __init__(
        self,
        spec: Spec,
        tokenise: Tokeniser,
        whole: Tokeniser | None,
        *,
        overlap: Overlap | None = None,
        show_records: bool = False,
    ) -> None:
        self._recipe = Recipe.from_spec(spec)
        self._limit = spec.dataset.unit.max_examples_per_unit
        self._refuses_no_id = Unusable.NO_ID in refused_kinds(spec.dataset)
        self._key = secrets.token_bytes(keys.WIDTH)
        self._overlap = overlap
        self._measured = _Measured(tokenise, whole, self._recipe)
        self._tokenise = replace(tokenise, encode=self._measured)
        self._keys: list[np.ndarray] = []
        self._alone: list[np.ndarray] = []
        self._show = show_records
        self._by_user = spec.dataset.unit.kind == "User"
        self._ids = IdCounts(keep=show_records)
        self._classes: Counter[int] = Counter()
        self._other_labels: Counter[str] = Counter()
        self._other_records = 0
        self._is_class = lru_cache(maxsize=1 << 12)(self._find_class)
        self.records = self.without_id = 0
        self.tally = Tally()
        self.files: dict[str, tuple[int, int]] = {}
        self.shown: list[tuple[Any, Any]] = []

    def add(self, table: pa.Table) -> None:
        """Count the records of a raw table; all of them are of one file."""
        self.records += len(table)
        split = split_by_unit(table, tokenise=self._tokenise, key=self._key, workers=1, overlap=self._overlap)
        self.tally.merge(split.tally)
        file = table.column("file")[0].as_py()
        records, total = self.files.get(file, (0, 0))
        self.files[file] = (records + len(table), (total + split.total) % (1 << 8 * keys.WIDTH))
        if self._by_user:
            ids = table.column("user").to_pylist()
            self.without_id += ids.count(None)
            self._ids.add(ids)
        self._count_other_labels(table)
        self._count_usable(split.tables[0])

    def _count_usable(self, made: pa.Table) -> None:
        alone = made.column("alone").to_numpy()
        if self._by_user and self._refuses_no_id:
            made = made.filter(pa.array(~alone))
            alone = np.zeros(len(made), bool)
        if not len(made):
            return
        self._alone.append(alone)
        self._keys.append(np.hstack([_beginnings(made.column(name)) for name in ("unit", "record")]))
        if self._recipe.labels:
            target = made.column("target").combine_chunks()
            numbers = target.to_numpy() if self._tokenise.target is Target.RECORD_LABEL else target.flatten().to_numpy()
            self._classes.update(numbers[numbers != IGNORE_INDEX].tolist())
        if self._show and len(self.shown) < _SHOWN:
            first = made.slice(0, _SHOWN - len(self.shown))
            inputs, targets = (first.column(name).to_pylist() for name in (self._tokenise.inputs.column, "target"))
            self.shown += zip(inputs, targets)

    def _count_other_labels(self, table: pa.Table) -> None:
        for role in set(self._recipe.columns) & set(table.column_names):
            if COLUMNS[role].content not in ("label", "word labels"):
                continue
            for value in table.column(role).to_pylist():
                labels = () if value is None else [value] if COLUMNS[role].content == "label" else json.loads(value)
                others = [label for label in labels if not self._is_class(label)]
                self._other_records += len(others)
                for label in others:
                    if label in self._other_labels or len(self._other_labels) < MAX_LABEL_TEXTS:
                        self._other_labels[label] += 1

    def _find_class(self, label: str) -> bool:
        try:
            self._recipe.class_of(label)
        except UnusableValue:
            return False
        return True

    @property
    def left_out(self) -> int:
        """Records that are left out for no fault: they are longer than maxLength."""
        return self._measured.left_out

    @property
    def usable(self) -> int:
        """The records that can be trained."""
        return sum(map(len, self._alone))

    def units(self) -> np.ndarray:
        """The number of records of each unit of usable records, int64 [units]."""
        if not self._keys:
            return np.empty(0, np.int64)
        alone = np.concatenate(self._alone)
        users = _group_sizes(np.concatenate(self._keys)[~alone, :2])
        return np.append(users, np.ones(np.count_nonzero(alone), np.int64))

    def records_per_unit(self) -> Distribution | None:
        """The distribution of `units`."""
        sizes = self.units()
        if not len(sizes):
            return None
        counts = dict(zip(*(each.tolist() for each in np.unique(sizes, return_counts=True))))
        return Distribution.of(counts, bins_that_double(max(counts)))

    def trained(self) -> int:
        """The usable records of which at most maxExamplesPerUnit of a unit are kept."""
        sizes = self.units()
        return int((sizes if self._limit is None else np.minimum(sizes, self._limit)).sum())

    def duplicates(self) -> Duplicates:
        """Equal usable records."""
        if not self._keys:
            return Duplicates(0, 0)
        sizes = _group_sizes(np.concatenate(self._keys)[:, 2:])
        return Duplicates(int((sizes > 1).sum()), int((sizes - 1).sum()))

    def labels(self) -> dict[str, int] | None:
        """The number of usable records, or of words, by class."""
        if not self._recipe.labels:
            return None
        names = self._recipe.label_names or tuple(map(str, range(self._recipe.labels)))
        return {name: self._classes[number] for number, name in enumerate(names)}

    def other_labels(self) -> OtherLabels | None:
        """The labels that are no class."""
        if not self._recipe.labels:
            return None
        whole = all(label.isascii() and label.isdecimal() and len(label) < 10 for label in self._other_labels)
        largest = max(map(int, self._other_labels)) if whole and self._other_labels else None
        texts = dict(self._other_labels.most_common()) if self._show else None
        return OtherLabels(self._other_records, len(self._other_labels), largest, texts)

    def lengths(self) -> Lengths | None:
        """The lengths of the records that can be tokenised; None for inputs without a length."""
        return self._measured.lengths()

    def ids(self) -> Ids | None:
        """The ids of users; None where the unit is not a user."""
        return Ids(self._ids.distinct(), self._ids.alike()) if self._by_user else None


class _Measured:
    """The encode of a tokeniser, which also measures the records before they are cut.

    Only the records that are as long as maxLength, or that fail for their length, are tokenised again.
    """

    def __init__(self, tokenise: Tokeniser, whole: Tokeniser | None, recipe: Recipe) -> None:
        self._tokenise, self._whole, self._recipe = tokenise, whole, recipe
        self._counts: Counter[int] = Counter()
        self._prompts_cut = 0
        self.left_out = 0

    def __call__(self, records: Mapping[str, Sequence[Any]]) -> list[Example | Unusable | None]:
        found = self._tokenise(records)
        self.left_out += found.count(None)
        if self._whole is not None:
            again = [i for i, made in enumerate(found) if self._may_be_cut(made)]
            values = {role: [column[i] for i in again] for role, column in records.items()}
            whole = tokenised(self._whole, values) if again else []
            self._counts.update(len(made.inputs) for made in found if isinstance(made, Example))
            for i, longer in zip(again, whole):
                self._recount(found[i], longer)
        return found

    def _may_be_cut(self, made: Example | Unusable | None) -> bool:
        if isinstance(made, Example):
            return len(made.inputs) >= self._recipe.max_length
        return made in (None, Unusable.NOTHING_TO_LEARN)

    def _recount(self, made: Example | Unusable | None, whole: Example | Unusable | None) -> None:
        """Count the length of a whole record in place of that of the example that was `made` of it."""
        if not isinstance(whole, Example):
            return
        self._counts[len(whole.inputs)] += 1
        if isinstance(made, Example):
            self._counts[len(made.inputs)] -= 1
            self._prompts_cut += made.inputs != whole.inputs[: len(made.inputs)]

    def lengths(self) -> Lengths | None:
        if self._whole is None:
            return None
        counts, limit = +self._counts, self._recipe.max_length
        cut = sum(count for length, count in counts.items() if length > limit)
        tokens = Distribution.of(counts, bins_of_lengths(counts, limit)) if counts else None
        prompts = self._prompts_cut if "prompt" in self._recipe.columns else None
        return Lengths(limit, tokens, max(WHOLE_LENGTH, limit), cut, prompts)


def _beginnings(column: pa.ChunkedArray) -> np.ndarray:
    """The first 16 bytes of each key, as uint64 [n, 2]."""
    content = b"".join(column.to_pylist())
    return np.frombuffer(content, np.uint64).reshape(-1, keys.WIDTH // 8)[:, :2]


def _group_sizes(rows: np.ndarray) -> np.ndarray:
    """How often each different row occurs, int64 [different rows]."""
    if not len(rows):
        return np.empty(0, np.int64)
    rows = rows[np.lexsort(rows.T)]
    starts = np.flatnonzero(np.append(True, (rows[1:] != rows[:-1]).any(axis=1)))
    return np.diff(np.append(starts, len(rows)))
