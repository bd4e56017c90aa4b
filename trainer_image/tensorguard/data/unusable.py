"""Why a record cannot be used, and the account of all such records of a data set.

`raw_table` or a task gives a record its kind. `partition` counts the kinds in a `Tally`, which is added up over the
parts of a data set, and `Tally.check` ends the job before anything is charged, unless `dataset.unusable` is Skip. A
tally holds kinds, numbers and places, and never content. What it holds is private all the same: only the message of a
local run has its numbers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum

from tensafe_api.resources.data import Dataset
from tensorguard.data.errors import DataError

MAX_FILES_NAMED = 10


class Unusable(Enum):
    """Why a record cannot be used. The value is the kind that `tensafe inspect -o json` prints."""

    NO_ID = "NoId"
    NO_TEXT = "NoText"
    NOT_TEXT = "NotText"
    NO_WORDS = "NoWords"
    NOT_UTF8 = "NotUtf8"
    NO_LABEL = "NoLabel"
    UNKNOWN_LABEL = "UnknownLabel"
    UNEVEN = "TokensAndTagsDiffer"
    NO_IMAGE = "NoImage"
    NO_CONVERSATION = "NoConversation"
    REWRITTEN = "RewrittenByTemplate"
    NOTHING_TO_LEARN = "NothingToLearn"
    TOO_LARGE = "TooLarge"
    NOT_TOKENISED = "NotTokenised"

    @property
    def description(self) -> str:
        """What such records have: completes "some records have ..."."""
        return _DESCRIPTIONS[self]


_DESCRIPTIONS = {
    Unusable.NO_ID: "no id of a user",
    Unusable.NO_TEXT: "no text",
    Unusable.NOT_TEXT: "a value that is not text",
    Unusable.NO_WORDS: "no list of words or tags, or its JSON text",
    Unusable.NOT_UTF8: "text that is not UTF-8",
    Unusable.NO_LABEL: "no label",
    Unusable.UNKNOWN_LABEL: "a label that is none of the classes (only the names, if model.labelNames has them)",
    Unusable.UNEVEN: "another number of tags than of tokens",
    Unusable.NO_IMAGE: "no complete PNG, JPEG, BMP or GIF image of a size that can be read",
    Unusable.NO_CONVERSATION: "no conversation: a list of messages, each with a role and a text",
    Unusable.REWRITTEN: "a message that the chat template refuses, leaves out or changes",
    Unusable.NOTHING_TO_LEARN: "nothing to learn within training.maxLength",
    Unusable.TOO_LARGE: "a value that is too large",
    Unusable.NOT_TOKENISED: "text with which the tokenizer fails",
}


@dataclass
class Tally:
    """The records that cannot be used, by kind and file: how many, and the place of the first (`Rows.at`)."""

    found: dict[tuple[Unusable, str], tuple[int, int]] = field(default_factory=dict)

    def add(self, kind: Unusable, file: str, at: int, count: int = 1) -> None:
        """Count a record of `file` at `at`, or several of which that is the first."""
        known, first = self.found.get((kind, file), (0, at))
        self.found[kind, file] = (known + count, min(first, at))

    def merge(self, other: Tally) -> None:
        """Add the records of another tally."""
        for (kind, file), (count, at) in other.found.items():
            self.add(kind, file, at, count)

    def to_json(self) -> str:
        """The tally as text, to be sent between processes."""
        return json.dumps([[kind.value, file, *found] for (kind, file), found in self.found.items()])

    @classmethod
    def from_json(cls, text: str) -> Tally:
        """The tally of `to_json`."""
        return cls({(Unusable(kind), file): (count, at) for kind, file, count, at in json.loads(text)})

    def by_kind(self) -> dict[Unusable, tuple[int, str, int]]:
        """By kind: the number of records, and the file and place of the first."""
        kinds = {}
        for kind in Unusable:
            files = {file: found for (each, file), found in self.found.items() if each is kind}
            if files:
                first = min(files)
                kinds[kind] = (sum(count for count, _ in files.values()), first, files[first][1])
        return kinds

    def check(
        self, *, refused: set[Unusable], where: str, place: Callable[[str, int], str], publish_numbers: bool
    ) -> None:
        """Raise DataError if there are records of the kinds `refused`.

        Args:
            refused: the kinds that end the job (`refused_kinds`).
            where: the manifest's field that errors name.
            place: of a record in words, from its file and `Rows.at`.
            publish_numbers: whether the message has the number of records and the place of the first. Otherwise it has
                kinds and files alone, and these figures are in the message of its cause.
        """
        kinds = {kind: found for kind, found in self.by_kind().items() if kind in refused}
        if not kinds:
            return
        private = DataError(
            f"{where}: "
            + "; ".join(
                f"{_records(count)} {kind.description} (the first: {place(file, at)})"
                for kind, (count, file, at) in kinds.items()
            )
            + _fix(kinds)
        )
        if publish_numbers:
            raise private
        faults = (f"some records of {self._files(kind)} have {kind.description}" for kind in kinds)
        raise DataError(f"{where}: {'; '.join(faults)}{_fix(kinds)}") from private

    def _files(self, kind: Unusable) -> str:
        files = sorted(file for each, file in self.found if each is kind)
        more = f" and {len(files) - MAX_FILES_NAMED} more files" if len(files) > MAX_FILES_NAMED else ""
        return ", ".join(filter(None, files[:MAX_FILES_NAMED])) + more or "the data set"


def _records(count: int) -> str:
    return "1 record has" if count == 1 else f"{count} records have"


def _fix(kinds: Iterable[Unusable]) -> str:
    fixes = [": correct the data"]
    if set(kinds) != {Unusable.NO_ID}:
        fixes.append("set spec.dataset.unusable to Skip, which leaves such records out")
    if Unusable.NO_ID in kinds:
        fixes.append("set spec.dataset.unit.missing to OwnUnit, which makes a unit of each record without an id")
    return ", or ".join(fixes)


def refused_kinds(dataset: Dataset) -> set[Unusable]:
    """The kinds of records that end a job with this data set."""
    refused = set() if dataset.unusable == "Skip" else set(Unusable) - {Unusable.NO_ID}
    return refused | ({Unusable.NO_ID} if dataset.unit.kind == "User" and dataset.unit.missing != "OwnUnit" else set())
