"""Derives the entries of an audit log from the states of a ledger.

In: what a log has so far (`Position`), and a state of the ledger. Out: the entries that are missing. The writer and
`tensafe verify` use the same function, so a log is complete exactly if nothing is missing in any state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from tensafe_api.reasons import Reason
from tensorguard.audit_log.entries import Entry, Event
from tensorguard.ledger.contract import LedgerState


@dataclass(frozen=True)
class Position:
    """What the entries of a log say of the ledger, up to one of them.

    Attributes:
        length, head: of the ledger after the newest write that was logged; 0 before the first.
        acquired_as: the newest attempt and incarnation.
        steps_charged: over all attempts.
        checkpoints: how many were published.
        dataset, model: whether they were recorded.
        outcome: of the newest incarnation.
    """

    length: int = 0
    head: str = ""
    acquired_as: tuple[int, int] = (0, 0)
    steps_charged: int = 0
    checkpoints: int = 0
    dataset: bool = False
    model: bool = False
    outcome: str | None = None

    def after(self, entry: Entry) -> Position:
        """The position after one more entry. Raises KeyError or TypeError where a field is missing or no number."""
        if entry.ledger_length is None:
            return self
        values = entry.values
        moved = replace(self, length=entry.ledger_length, head=values["ledgerHead"])
        match entry.event:
            case Event.START | Event.RESUME:
                return replace(moved, acquired_as=(values["attempt"], values["incarnation"]), outcome=None)
            case Event.CHARGE:
                return replace(moved, steps_charged=self.steps_charged + values["steps"])
            case Event.PUBLICATION:
                return replace(moved, checkpoints=self.checkpoints + 1)
            case Event.DATASET:
                return replace(moved, dataset=True)
            case Event.MODEL:
                return replace(moved, model=True)
            case Event.INTERRUPTION:
                return replace(moved, outcome="Suspended")
            case Event.END:
                return replace(moved, outcome=values["outcome"])
        return moved


def position_after(entries: Iterable[Entry]) -> Position:
    """The position after all entries. Raises as `Position.after`."""
    position = Position()
    for entry in entries:
        position = position.after(entry)
    return position


def missing_entries(position: Position, state: LedgerState) -> list[tuple[Event, dict[str, Any]]]:
    """The entries that bring a log from `position` to `state`: one, where `state` is the next one of the ledger.

    A backend that keeps no old states gives one state for several writes, and their entries then name its head.
    """
    if state.length < position.length:
        return []
    ledger = {"ledgerLength": state.length, "ledgerHead": state.head}
    if state.length == 1:
        spec = state.spec
        values = {"targetEpsilon": spec.target_epsilon, "delta": spec.delta, "plannedSteps": spec.planned_steps}
        return [] if position.length else [(Event.OPEN, {**ledger, **values})]
    where = {**ledger, "attempt": state.attempt, "incarnation": state.incarnation}
    return [(event, {**where, **values}) for event, values in _changes(position, state)]


def _changes(position: Position, state: LedgerState) -> Iterator[tuple[Event, dict[str, Any]]]:
    """What has changed in a ledger since it was opened: each event with the values of its own."""
    acquired = (state.attempt, state.incarnation) != position.acquired_as
    if acquired:
        first = position.acquired_as == (0, 0) and state.steps_charged == 0
        yield Event.START if first else Event.RESUME, {"step": state.start_steps[-1]}
    if state.dataset_digest is not None and not position.dataset:
        yield Event.DATASET, {"digest": state.dataset_digest}
    if state.model_weights is not None and not position.model:
        yield Event.MODEL, {"weights": state.model_weights, "chatTemplate": state.chat_template_digest}
    if (steps := state.steps_charged - position.steps_charged) > 0:
        yield (
            Event.CHARGE,
            {"steps": steps, "stepsCharged": state.steps_charged, "chargedThrough": state.charged_through},
        )
    for checkpoint in state.checkpoints[position.checkpoints :]:
        yield (
            Event.PUBLICATION,
            {
                "step": checkpoint.step,
                "uri": checkpoint.uri,
                "digest": checkpoint.digest,
                "statementDigest": checkpoint.statement_digest,
                "final": checkpoint.final,
                "signer": checkpoint.signer,
            },
        )
    logged = None if acquired else position.outcome
    if state.outcome == "Suspended" != logged:
        yield (
            Event.INTERRUPTION,
            {"reason": Reason.INTERRUPTED.value, "message": "stopped on request, with a checkpoint"},
        )
    elif state.outcome is not None and state.outcome != logged:
        yield Event.END, {"outcome": state.outcome}
