"""Computes a ledger's state from its entries.

The functions are pure, so that reading and writing, and both backends, give the same state.

An entry is a mapping with a `kind`: claim (an acquisition), charge, dataset, model, release (a published checkpoint) or
outcome. `apply_entry` keeps the most important guarantee by its form: a charge only adds, and no kind subtracts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tensafe_api.resources.ledger import LedgerSpec
from tensorguard.ledger.contract import Charge, LedgerState, PublishedCheckpoint

Entry = Mapping[str, Any]


def new_state(spec: LedgerSpec, head: str) -> LedgerState:
    """The state of a ledger that holds only the specification it was opened with."""
    return LedgerState(
        spec=spec,
        attempt=0,
        incarnation=0,
        charges=(),
        checkpoints=(),
        steps_recharged=0,
        start_steps=(),
        charged_through=0,
        outcome=None,
        dataset_digest=None,
        model_weights=None,
        chat_template_digest=None,
        head=head,
        length=1,
    )


def apply_entry(state: LedgerState, entry: Entry, head: str) -> LedgerState:
    """The state after one more entry, whose hash is `head`.

    Raises:
        ValueError, KeyError, TypeError: if it is not a valid entry of a ledger.
    """
    return replace(state, **_changes(state, entry), head=head, length=state.length + 1)


def _changes(state: LedgerState, entry: Entry) -> dict[str, Any]:
    match entry["kind"]:
        case "claim":
            attempt, from_step = entry["attempt"], entry["fromStep"]
            before = next((charge.steps for charge in state.charges if charge.attempt == attempt), 0)
            restarted = attempt == state.attempt and state.outcome is None  # an outcome means that it ended gracefully
            return {
                "attempt": attempt,
                "incarnation": entry["incarnation"],
                "charges": _with(state, Charge(attempt, before, entry["incarnation"], entry["holder"])),
                "start_steps": (*(state.start_steps if restarted else ()), from_step),
                "steps_recharged": state.steps_recharged + max(0, state.charged_through - from_step),
                "charged_through": from_step,
                "outcome": None,
            }
        case "charge":
            steps = entry["steps"]
            if steps < 1:
                raise ValueError("a charge must be of at least one step")
            charge = next(charge for charge in state.charges if charge.attempt == state.attempt)
            return {
                "charges": _with(state, replace(charge, steps=charge.steps + steps)),
                "charged_through": state.charged_through + steps,
            }
        case "dataset":
            return {"dataset_digest": entry["digest"]}
        case "model":
            return {"model_weights": entry["weights"], "chat_template_digest": entry["chatTemplate"]}
        case "release":
            checkpoint = PublishedCheckpoint(
                step=entry["step"],
                attempt=entry["attempt"],
                uri=entry["uri"],
                digest=entry["digest"],
                statement_digest=entry["statementDigest"],
                final=entry["final"],
                signer=entry.get("signer"),
            )
            return {"checkpoints": (*state.checkpoints, checkpoint)}
        case "outcome":
            return {"outcome": entry["outcome"]}
        case kind:
            raise ValueError(f"a ledger has no entry of kind {kind!r}")


def _with(state: LedgerState, charge: Charge) -> tuple[Charge, ...]:
    """The charges, with this one instead of the previous charge of the same attempt."""
    others = {each.attempt: each for each in state.charges}
    return tuple({**others, charge.attempt: charge}.values())


def checkpoint_entry(checkpoint: PublishedCheckpoint) -> Entry:
    """The ledger entry of a published checkpoint."""
    return {
        "kind": "release",
        "step": checkpoint.step,
        "attempt": checkpoint.attempt,
        "uri": checkpoint.uri,
        "digest": checkpoint.digest,
        "statementDigest": checkpoint.statement_digest,
        "final": checkpoint.final,
        **({"signer": checkpoint.signer} if checkpoint.signer else {}),
    }
