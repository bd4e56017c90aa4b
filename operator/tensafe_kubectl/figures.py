"""What a ledger records, and the figures that follow from it. Every ε is computed here from the charges.

A PrivacyLedger comes in as the API server returns it; a `Figures` goes out. This module imports dp-accounting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tensafe_api.accounting.composition import format_epsilon
from tensafe_api.resolve import Claim
from tensafe_api.resources.ledger import LedgerStatus, PrivacyLedgerSpec, PublishedCheckpointRecord
from tensafe_kubectl.api import Object
from tensafe_kubectl.errors import CommandError


@dataclass(frozen=True)
class Figures:
    """A ledger and its figures.

    Attributes:
        status: None before a worker has acquired the ledger.
        charged: steps charged over all attempts.
        claimed: steps to sign off.
    """

    name: str
    spec: PrivacyLedgerSpec
    status: LedgerStatus | None
    claim: Claim
    charged: int
    claimed: int
    epsilon_spent: str
    epsilon_claimed: str

    @property
    def final(self) -> PublishedCheckpointRecord | None:
        """The published checkpoint that is the result of the job; None if there is none yet."""
        releases = self.status.releases if self.status is not None else ()
        return next((each for each in reversed(releases) if each.final), None)

    def as_json(self) -> dict[str, Any]:
        """The figures and the records, for a program."""
        status = self.status.model_dump(by_alias=True, mode="json", exclude_none=True) if self.status else {}
        return {
            "ledger": self.name,
            "job": self.spec.job_name,
            "uid": self.spec.job_uid,
            "epsilonSpent": self.epsilon_spent,
            "epsilonClaimed": self.epsilon_claimed,
            "targetEpsilon": self.spec.target_epsilon,
            "delta": self.spec.delta,
            "accountant": self.spec.accountant,
            "mechanism": self.spec.mechanism.model_dump(by_alias=True, mode="json"),
            "stepsClaimed": self.claimed,
            "stepsCharged": self.charged,
            "stepsPlanned": self.spec.planned_steps,
            "stepsReserved": self.spec.reserve_steps,
            "stepsRecharged": status.get("stepsRecharged", 0),
            **{key: status.get(key, [] if key in ("charges", "releases") else None) for key in _RECORDS},
        }


_RECORDS = ("charges", "releases", "outcome", "datasetDigest", "head", "length")


def figures_of(ledger: Object) -> Figures:
    """The figures of a PrivacyLedger.

    Raises:
        CommandError: this version cannot read it.
    """
    name = ledger["metadata"]["name"]
    try:
        spec = PrivacyLedgerSpec.model_validate(ledger["spec"], by_alias=True, by_name=False)
        found = ledger.get("status")
        status = LedgerStatus.model_validate(found, by_alias=True, by_name=False) if found else None
    except ValueError as error:
        raise CommandError(
            f"this version of tensafe cannot read the ledger {name}: upgrade the plugin to the operator's version"
        ) from error
    claim = Claim.of(spec)
    charged = sum(charge.steps for charge in status.charges) if status is not None else 0
    return Figures(
        name=name,
        spec=spec,
        status=status,
        claim=claim,
        charged=charged,
        claimed=claim.claimed_steps(charged),
        epsilon_spent=format_epsilon(claim.epsilon(charged)),
        epsilon_claimed=format_epsilon(claim.epsilon_claimed(charged)),
    )
