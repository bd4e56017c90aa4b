"""The entity F1 as seqeval defines it, written a second time for tests to compare with.

The two conditions are those of `seqeval.metrics.sequence_labeling` (its default mode, which is that of conlleval) for
the prefixes B, I and O. Texts are counted one by one and added up.
"""

from __future__ import annotations

from collections.abc import Sequence


def entity_f1(expected: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> float:
    """F1 over the tags of several texts, such as [["B-x", "I-x", "O"], ...]; 0 where there is no entity at all."""
    gold = {(text, *entity) for text, tags in enumerate(expected) for entity in _entities(tags)}
    found = {(text, *entity) for text, tags in enumerate(predicted) for entity in _entities(tags)}
    right = len(gold & found)
    precision = right / len(found) if found else 0.0
    recall = right / len(gold) if gold else 0.0
    return 2 * precision * recall / (precision + recall) if right else 0.0


def _entities(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    found = []
    last_prefix, last_kind, start = "O", "", 0
    for i, tag in enumerate([*tags, "O"]):
        prefix, _, kind = tag.partition("-")
        if _ends(last_prefix, prefix, last_kind, kind):
            found.append((last_kind, start, i - 1))
        if _starts(last_prefix, prefix, last_kind, kind):
            start = i
        last_prefix, last_kind = prefix, kind
    return found


def _ends(last_prefix: str, prefix: str, last_kind: str, kind: str) -> bool:
    return (
        (last_prefix == "B" and prefix in "BO")
        or (last_prefix == "I" and prefix in "BO")
        or (last_prefix != "O" and last_kind != kind)
    )


def _starts(last_prefix: str, prefix: str, last_kind: str, kind: str) -> bool:
    return prefix == "B" or (last_prefix == "O" and prefix == "I") or (prefix != "O" and last_kind != kind)
