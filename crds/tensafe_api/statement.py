"""The privacy card: what may be claimed of an adapter, on what grounds, and what is not covered.

It is written beside each adapter from the ledger alone, as canonical JSON and as a page to read. Everything in it can
be checked: `events` and `delta` give ε again with dp-accounting in three lines, and the hashes name what was run on
what. A fact that nobody knows is "not known", never a default.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensafe_api import accounting
from tensafe_api.privacy_events import Mechanism, PrivacyEvent

SCHEMA = "tensafe.io/statement/v1alpha1"
NOT_KNOWN = "not known"

_UNIT = {
    "Example": "one record of the data set (one conversation is one record; records are never packed together)",
    "User": "all records of one user, of which at most spec.dataset.unit.maxExamplesPerUnit were used; "
    "each record without a user id (null) is a unit of its own",
}
_RUN = (
    "Poisson sampling of units, per-unit clipping, stochastic rounding with an integer norm check, "
    "discrete Gaussian shares"
)
_ASSUMED = (
    "Readers of the adapter, the status, the ledger and this statement: nothing is assumed of them.",
    "The object store may read everything that is written to it; a change there is detected.",
    "Workers: run this code; up to `mechanism.colluders` of them may pool what they saw. A worker sees its own shard.",
    "The Ray head and driver: honest but curious. Whoever can run code on the workers reads all they hold.",
)
_NOT_COVERED = (
    "Step time, which tells something about how many records joined a step.",
    "The choice of hyper-parameters by trying several runs on the same data: compose the ε of all runs.",
    "Other runs on the same data or people, unless they were charged to this ledger.",
    "How many steps were charged beyond the planned ones: it is taken to follow from crashes, not from what was shown.",
    "A true number of units far above `unit.atLeast` enlarges batches and changes nothing in the claim.",
)


@dataclass(frozen=True)
class AggregationStatement:
    """The aggregation protocol's own part of the statement. The trainer's protocol writes it, since only the protocol
    knows on what its secrecy rests.
    """

    protocol: str
    """The name of the protocol in words; ends the list of steps in `mechanism.run`."""
    assumed: Sequence[str]
    """Sentences on what the protocol assumes of the network and of other parties."""
    not_covered: Sequence[str]
    """Sentences on what the protocol does not protect against."""


@dataclass(frozen=True)
class StatementInputs:
    """What the trainer knows besides the ledger. Whatever is absent is stated as not known."""

    job_name: str
    job_uid: str
    attempt: int
    mechanism: Mechanism
    unit_at_least: int
    planned_steps: int
    target_epsilon: str
    delta: str
    accountant: accounting.AccountantName
    steps_charged: int
    steps_recharged: int
    step: int
    events: Sequence[PrivacyEvent]
    dimension: int
    noise_distance: float
    """Total variation of one draw of the noise sampler from the discrete Gaussian."""
    aggregation: AggregationStatement
    adapter_digest: str
    ledger_head: str
    ledger_length: int
    dataset_digest: str | None = None
    lineage: str | None = None
    model: Mapping[str, str] = field(default_factory=dict)
    evaluation: str | None = None
    private_metrics: str = "Hidden"
    remarks: Sequence[str] = ()


def build_statement(facts: StatementInputs) -> dict[str, Any]:
    """The statement as a JSON object. Its ε are rounded up at three decimals."""
    claimed = accounting.claimed_steps(
        facts.mechanism,
        planned=facts.planned_steps,
        charged=facts.steps_charged,
        target_epsilon=float(facts.target_epsilon),
        target_delta=facts.delta,
        accountant=facts.accountant,
    )
    mechanism, delta, accountant = facts.mechanism, facts.delta, facts.accountant
    return {
        "schema": SCHEMA,
        "job": {"name": facts.job_name, "uid": facts.job_uid, "attempt": facts.attempt, "step": facts.step},
        "claim": {
            "epsilon": accounting.format_epsilon(accounting.job_epsilon(mechanism, claimed, delta, accountant)),
            "targetEpsilon": facts.target_epsilon,
            "delta": delta,
            "unit": mechanism.unit,
            "unitDefinition": _UNIT[mechanism.unit],
            "adjacency": mechanism.adjacency,
            "steps": claimed,
            "released": "every step's noised sum, and so every checkpoint, the status and the public evaluations",
            "covers": "this job with all its attempts and restarts, of the planned steps at least",
        },
        "spent": {
            "epsilon": accounting.format_epsilon(
                accounting.job_epsilon(mechanism, facts.steps_charged, delta, accountant)
            ),
            "stepsCharged": facts.steps_charged,
            "stepsRecharged": facts.steps_recharged,
            "stepsPlanned": facts.planned_steps,
        },
        "againstOutsider": accounting.format_epsilon(
            accounting.outsider_epsilon(mechanism, facts.steps_charged, delta, accountant)
        ),
        "mechanism": {
            "assumed": "Poisson-sampled Gaussian; at this σ the discrete one differs by less than a float shows",
            "run": f"{_RUN}, {facts.aggregation.protocol}",
            **mechanism.model_dump(by_alias=True, mode="json"),
            "dimension": facts.dimension,
            "noiseDistancePerDraw": f"{facts.noise_distance:.3e}",
        },
        "events": [event.model_dump(by_alias=True, mode="json") for event in facts.events],
        "accounting": {
            "accountant": accountant,
            "library": f"dp-accounting {importlib.metadata.version('dp-accounting')}",
            "shareOfDeltaForNoiseSampler": f"{accounting.SAMPLER_SHARE_OF_DELTA:g}",
            "unitAtLeast": facts.unit_at_least,
        },
        "hashes": {
            "adapter": facts.adapter_digest,
            "dataset": f"keyed:{facts.dataset_digest}" if facts.dataset_digest else NOT_KNOWN,
            "ledgerHead": facts.ledger_head,
            "ledgerLength": facts.ledger_length,
            "code": f"tensafe {importlib.metadata.version('tensafe')}",
            "image": NOT_KNOWN,
        },
        "model": dict(facts.model) or NOT_KNOWN,
        "lineage": facts.lineage or NOT_KNOWN,
        "evaluation": facts.evaluation or "none",
        "privateMetrics": facts.private_metrics,
        "budget": NOT_KNOWN,
        "assumed": [*_ASSUMED, *facts.aggregation.assumed],
        "notCovered": [*_NOT_COVERED, *facts.aggregation.not_covered],
        "remarks": list(facts.remarks),
    }


def canonical_json(value: Mapping[str, Any]) -> bytes:
    """JSON with sorted keys and no spaces, UTF-8: the bytes that are hashed."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest(content: bytes) -> str:
    """`sha256:` and the hash of `content`."""
    return "sha256:" + hashlib.sha256(content).hexdigest()


def recompute_epsilon(document: Mapping[str, Any]) -> str:
    """ε of a statement's events as anyone can have it again, in the form of `spent.epsilon`."""
    events = [PrivacyEvent.model_validate(event) for event in document["events"]]
    delta = accounting.job_delta(document["claim"]["delta"])
    return accounting.format_epsilon(accounting.epsilon_of_events(events, delta, document["accounting"]["accountant"]))


def render_markdown(document: Mapping[str, Any]) -> str:
    """The statement as a Markdown page."""
    claim, spent, mechanism = document["claim"], document["spent"], document["mechanism"]
    lines = [
        f"# Privacy statement of {document['job']['name']}, step {document['job']['step']}",
        "",
        f"**({claim['epsilon']}, {claim['delta']})-differential privacy** for {claim['unitDefinition']}, "
        f"under {claim['adjacency']} adjacency, for {claim['covers']}.",
        "",
        "| | |",
        "|---|---|",
        f"| job | {document['job']['name']}, uid {document['job']['uid']}, attempt {document['job']['attempt']} |",
        f"| unit | {claim['unit']} |",
        f"| released | {claim['released']} |",
        f"| ε claimed, of {claim['steps']} steps | {claim['epsilon']} |",
        f"| ε spent, of {spent['stepsCharged']} steps ({spent['stepsRecharged']} charged again) | {spent['epsilon']} |",
        f"| planned steps | {spent['stepsPlanned']} |",
        f"| ε against somebody who holds no worker's share | {document['againstOutsider']} |",
        f"| δ | {claim['delta']} |",
        f"| sampling rate q | {mechanism['sampleRate']} |",
        f"| noise multiplier σ | {mechanism['noiseMultiplier']} |",
        f"| clip norm C | {mechanism['clip']} |",
        f"| workers, of which may collude | {mechanism['workers']}, {mechanism['colluders']} |",
        f"| expected batch, in units | {mechanism['expectedBatchSize']} |",
        f"| grid | 2^{mechanism['gridBits']} steps in C, {mechanism['dimension']} coordinates |",
        f"| mechanism run | {mechanism['run']} |",
        f"| mechanism accounted | {mechanism['assumed']} |",
        *(
            f"| event | {event['steps']} × {event['kind']}, q {event['sampleRate']}, σ {event['noiseMultiplier']} |"
            for event in document["events"]
        ),
        f"| noise sampler's distance from it, per draw | {mechanism['noiseDistancePerDraw']} |",
        f"| share of δ that pays for that | {document['accounting']['shareOfDeltaForNoiseSampler']} |",
        f"| accountant | {document['accounting']['accountant']}, {document['accounting']['library']} |",
        f"| public lower bound of the number of units | {document['accounting']['unitAtLeast']} |",
        f"| model | {_model(document['model'])} |",
        f"| adapter | `{document['hashes']['adapter']}` |",
        f"| data set | `{document['hashes']['dataset']}` |",
        f"| lineage | {document['lineage']} |",
        f"| ledger | entry {document['hashes']['ledgerLength']}, `{document['hashes']['ledgerHead']}` |",
        f"| code | {document['hashes']['code']} |",
        f"| image | {document['hashes']['image']} |",
        f"| budget of the data set | {document['budget']} |",
        f"| evaluation set | {document['evaluation']} |",
        f"| private metrics | {document['privateMetrics']} |",
        "",
    ]
    for title, key in (("Assumed", "assumed"), ("Not covered", "notCovered"), ("Remarks", "remarks")):
        if document[key]:
            lines += [f"## {title}", "", *(f"- {sentence}" for sentence in document[key]), ""]
    return "\n".join(lines)


def _model(model: Mapping[str, str] | str) -> str:
    return model if isinstance(model, str) else ", ".join(f"{name} {value}" for name, value in sorted(model.items()))
