"""From a ledger's entries to its state: a pure fold, so that reading and writing cannot disagree.

An entry is a mapping with a `kind`: open, claim, charge, dataset, release or outcome. What a person may rely on holds
by the shape of the fold: `charge` only adds, and no kind subtracts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tensorguard.ledger.contract import Charge, LedgerSpec, LedgerState, Outcome, Release

Entry = Mapping[str, Any]


def fold(entries: Iterable[Entry], head: str, length: int) -> LedgerState:
    """The state after `entries`, the first of which opens the ledger.

    Raises:
        ValueError, KeyError, TypeError: where an entry is not one of a ledger.
    """
    entries = iter(entries)
    spec = LedgerSpec.model_validate(next(entries, {"kind": "none"})["spec"])
    charges: dict[int, Charge] = {}
    releases: list[Release] = []
    attempt = incarnation = recharged = 0
    at = 0  # the step through which the present incarnation has been charged
    claimed_from: list[int] = []
    outcome: Outcome | None = None
    dataset_digest: str | None = None
    for entry in entries:
        match entry["kind"]:
            case "claim":
                if entry["attempt"] != attempt:
                    claimed_from = []
                attempt, incarnation = entry["attempt"], entry["incarnation"]
                claimed_from.append(entry["fromStep"])
                recharged += max(0, at - entry["fromStep"])
                at = entry["fromStep"]
                steps = charges[attempt].steps if attempt in charges else 0
                charges[attempt] = Charge(attempt, steps, incarnation, entry["holder"])
                outcome = None
            case "charge":
                if entry["steps"] < 1:
                    raise ValueError("a charge is of at least one step")
                before = charges[attempt]
                charges[attempt] = Charge(attempt, before.steps + entry["steps"], incarnation, before.holder)
                at += entry["steps"]
            case "dataset":
                dataset_digest = entry["digest"]
            case "release":
                releases.append(
                    Release(
                        step=entry["step"],
                        attempt=entry["attempt"],
                        uri=entry["uri"],
                        digest=entry["digest"],
                        statement_digest=entry["statementDigest"],
                        final=entry["final"],
                    )
                )
            case "outcome":
                outcome = entry["outcome"]
            case kind:
                raise ValueError(f"a ledger has no entry of kind {kind!r}")
    return LedgerState(
        spec=spec,
        attempt=attempt,
        incarnation=incarnation,
        charges=tuple(charges.values()),
        releases=tuple(releases),
        steps_recharged=recharged,
        claimed_from=tuple(claimed_from),
        outcome=outcome,
        dataset_digest=dataset_digest,
        head=head,
        length=length,
    )
