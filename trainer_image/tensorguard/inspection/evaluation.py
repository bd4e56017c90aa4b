"""Counts the records of the evaluation set as a training would prepare them.

In: its raw tables, and the tokeniser of the job. Out: counts, and a digest of each usable record, for `Overlap`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from tensorguard.data.errors import DataError
from tensorguard.data.partition import NO_RECORD, tokenise_public
from tensorguard.data.tokenise import Example, Tokeniser
from tensorguard.data.unusable import Tally, Unusable


class EvaluationCollector:
    """The counts of an evaluation set: all `records` that were read, and a `tally` of those that cannot be used.

    The others are `usable`, or `left_out` because they are longer than maxLength.
    """

    def __init__(self, tokenise: Tokeniser) -> None:
        self._tokenise = replace(tokenise, encode=self._encode)
        self._inner = tokenise
        self._contents = [np.empty(0, np.uint64)]
        self.records = self.usable = self.left_out = 0
        self.tally = Tally()

    def add(self, table: pa.Table) -> None:
        """Count the records of a raw table."""
        self.records += len(table)
        made = tokenise_public(table, tokenise=self._tokenise)
        self.tally.merge(made.tally)
        for part in made.tables:
            self.usable += len(part)
            self._contents.append(part.column("content").to_numpy())

    def _encode(self, records: Mapping[str, Sequence[Any]]) -> list[Example | Unusable | None]:
        found = self._inner(records)
        self.left_out += found.count(None)
        return found

    def contents(self) -> np.ndarray:
        """The digests of the usable records, uint64 [usable]."""
        return np.concatenate(self._contents)

    def check(self, where: str) -> None:
        """Raise DataError if no record is usable."""
        if not self.usable:
            raise DataError(f"{where}: {NO_RECORD}")
