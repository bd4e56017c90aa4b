"""The labelled texts that the benchmarks train and test on, as plain Python values and as token tensors.

SST-2 as two-column files comes in, E2E as csv files, or any jsonl file with ``text`` and ``label``. ``Examples`` go
out, and ``TensorDataset`` objects of a fixed width. Both sides of a comparison use this module, so that they get the
same rows in the same order with the same tokens.
"""

from __future__ import annotations

import csv
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils.data import TensorDataset
from transformers import PreTrainedTokenizerBase

ROOT = Path(__file__).resolve().parents[1]
RATINGS = ("1 out of 5", "3 out of 5", "5 out of 5", "average", "high", "low")


class CorpusMissing(FileNotFoundError):
    """A data set that is not part of the project is not on this machine; the message has the path and the fix."""


@dataclass(frozen=True)
class Examples:
    """Labelled texts; ``labels[i]`` is the class number, from 0, of ``texts[i]``."""

    texts: tuple[str, ...]
    labels: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.texts)

    def first(self, rows: int) -> Examples:
        return Examples(self.texts[:rows], self.labels[:rows])


def data_root() -> Path:
    """The folder with ``sst2/`` and ``e2e/``: ``TENSAFE_DATA`` of the environment, or ``../shared/data``."""
    return Path(os.environ.get("TENSAFE_DATA") or ROOT.parent / "shared" / "data")


def sst2(split: str) -> Examples:
    """SST-2's ``train`` (6,920 rows), ``dev`` (872) or ``test`` (1,821).

    The files are ``text<TAB>label`` with no header and no quoting. Quotation marks are part of the text, so the csv
    module cannot read them.

    Raises:
        CorpusMissing: the file does not exist.
    """
    return _labelled("sst2", split)


def _labelled(folder: str, split: str) -> Examples:
    path = data_root() / folder / f"{split}.tsv"
    if not path.is_file():
        raise CorpusMissing(
            f"{path} does not exist: put SST-2 in a folder {folder}/ and name its parent in TENSAFE_DATA."
        )
    rows = [line.rsplit("\t", 1) for line in path.read_text(encoding="utf-8").splitlines() if line]
    return Examples(tuple(text for text, _ in rows), tuple(int(label) for _, label in rows))


def glue_sst2(split: str) -> Examples:
    """SST-2 as GLUE has it: ``train`` (67,349 phrases and sentences) or ``dev`` (872 sentences).

    Raises:
        CorpusMissing: the file does not exist.
    """
    return _labelled("glue-sst2", split)


def e2e(name: str) -> list[tuple[str, str]]:
    """The pairs of meaning and sentence in E2E's ``devset`` (4,672) or ``testset_w_refs`` (4,693).

    Raises:
        CorpusMissing: the file does not exist.
    """
    path = data_root() / "e2e" / f"{name}.csv"
    if not path.is_file():
        raise CorpusMissing(f"{path} does not exist: put E2E in a folder e2e/ and name its parent in TENSAFE_DATA.")
    with path.open(encoding="utf-8", newline="") as handle:
        return [(row["mr"], row["ref"]) for row in csv.DictReader(handle)]


def e2e_ratings(name: str) -> Examples:
    """The sentences of E2E whose meaning has a customer rating; ``RATINGS`` names the six classes.

    Raises:
        CorpusMissing: the file does not exist.
    """
    found = [(sentence, re.search(r"customer rating\[(.*?)\]", meaning)) for meaning, sentence in e2e(name)]
    rated = [(sentence, RATINGS.index(rating[1])) for sentence, rating in found if rating]
    return Examples(tuple(sentence for sentence, _ in rated), tuple(label for _, label in rated))


def jsonl(path: Path, label_names: tuple[str, ...]) -> Examples:
    """A jsonl file with the string fields ``text`` and ``label``; a label's number is its index in ``label_names``.

    Raises:
        CorpusMissing: the file does not exist.
    """
    if not path.is_file():
        raise CorpusMissing(f"{path} does not exist: run make_data.py in the same folder first.")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return Examples(tuple(row["text"] for row in rows), tuple(label_names.index(row["label"]) for row in rows))


def tokens(examples: Examples, tokenizer: PreTrainedTokenizerBase, max_length: int) -> TensorDataset:
    """``(input_ids, attention_mask, label)``, int64, rows padded or cut to ``max_length`` tokens."""
    encoded = tokenizer(
        list(examples.texts), padding="max_length", truncation=True, max_length=max_length, return_tensors="pt"
    )
    return TensorDataset(encoded["input_ids"], encoded["attention_mask"], torch.tensor(examples.labels))
