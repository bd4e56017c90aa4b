"""The privacy statement of an adapter: what is claimed, on which grounds, and what the claim does not cover.

The trainer writes it beside each adapter, from the ledger, as canonical JSON and as a page for readers. Everything in
it can be checked: a few lines of dp-accounting compute ε again from `events` and `accounting`, and the hashes identify
the code, the model, the data and the ledger. An unknown fact is stated as "not known" and never replaced by a default.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tensafe_api.accounting import composition
from tensafe_api.resources.mechanism import Mechanism, PrivacyEvent

Place = Literal["OneMachine", "Nodes", "Pods", "PodsWithTLS"]
"""Where the workers of a job run: all on one machine, on nodes of a Ray cluster, or each in its own pod. Between pods,
Ray's messages are encrypted with TLS, or not.
"""
SCHEMA = "tensafe.io/statement/v1alpha1"
STATEMENT_FILE = "statement.json"
"""Name of the statement in the directory of a checkpoint."""
NOT_KNOWN = "not known"

_USER = "all records of one user, of which at most spec.dataset.unit.maxExamplesPerUnit were used"
UNIT_DEFINITIONS = {
    "Example": (
        "one record of the data set, such as one text, conversation or image (records are never packed together); a "
        "record that stands in the data set several times is as many units",
    ),
    "User": (_USER, f"{_USER}; each record without a user id is a separate unit"),
}
"""What one unit is; for users, without and with `unit.missing: OwnUnit`. Readers refuse other words. Where a release
changes some of a claim, they must accept both."""
ADJACENCY_DEFINITIONS = {
    "AddOrRemoveOne": "neighbouring data sets differ by one unit, added or removed; the number of units is private",
    "ZeroOut": "neighbouring data sets differ by one unit, in whose place one of them has nothing; the number of units "
    "is the same and public",
}
SHARE_OF_SIGMA, SHARE_OF_DELTA = f"{composition.SIGMA_SHARE:g}", f"{composition.SAMPLER_SHARE_OF_DELTA:g}"
"""The shares of σ and δ that pay for discrete noise and its samplers, as a statement writes them."""
SAMPLERS_UNPAID = "the noise sampler's distance from the discrete Gaussian adds "
"""In the remark of a statement whose share of δ does not pay for the noise samplers, because ε hides nothing."""
RELEASED = "the noised sum of every step, and therefore every checkpoint, the status and the public evaluations"
_RUN = (
    "Poisson sampling of units, per-unit clipping, stochastic rounding with an integer norm check, "
    "discrete Gaussian shares"
)
_ASSUMED = (
    "Readers of the adapter, the status, the ledger and this statement: nothing is assumed about them.",
    "The object store: it may read everything that is written to it. A change of what it stores is detected.",
)
_NOT_AGAINST_WORKERS = (
    "Every worker can read the whole data set, and trains on its own shard of it. So the claim holds against readers "
    "who are not workers, and hides no record from a worker."
)
_PODS = (
    f"Workers: they run this code, each in its own pod. {_NOT_AGAINST_WORKERS}",
    "The Ray head and driver: honest but curious. They hold no record and no key. A party that can run code on the "
    "workers can read everything that they hold.",
)
_ASSUMED_OF_WORKERS: dict[Place, tuple[str, ...]] = {
    "OneMachine": (
        "Workers, driver and Ray: they run this code, as processes on one machine. The owner of the machine can read "
        "the data set and everything that the processes hold. Masks do not protect against the owner. They run all the "
        "same, so that the code that is tested is the code that is used.",
    ),
    "Nodes": (
        f"Workers: they run this code, on the nodes of a Ray cluster. {_NOT_AGAINST_WORKERS}",
        "The Ray head, the driver and the storage that the nodes share: honest but curious. A party that can run code "
        "on a node can read everything that its workers hold.",
    ),
    "Pods": (
        *_PODS,
        "Ray's messages between the pods of this attempt are not encrypted. So a party that reads the network does not "
        "reach the head: with the token in these messages it could run code on the workers.",
    ),
    "PodsWithTLS": (
        *_PODS,
        "The network between the pods of this attempt may read everything that passes. Ray's messages are encrypted "
        "(TLS). Not encrypted are the workers' messages to each other (public keys, masked vectors, revealed sums, "
        "tags, parts of a sharded base model) and KubeRay's requests to the head, with the job's state and the last "
        "lines of the driver's log. These requests carry no token. A party that reaches the head's port for them can "
        "read this state and start the job's driver again, and can run no other code.",
    ),
}
_NOT_COVERED = (
    "The duration of a step, which reveals something about the number of records that joined it.",
    "The choice of hyper-parameters by several runs on the same data: compose the ε of all runs.",
    "Other runs on the same data or on data of the same people, unless they were charged to this ledger.",
    "The number of steps charged beyond the planned ones: it is assumed to depend on crashes and not on results.",
)
_PRIVATE_METRICS = (
    "Readers of the private metrics (training loss, gradient norms, batch sizes): these are exact figures of the "
    "private data. They are in the run's private folder, and go to callbacks that ask for them."
)
_BOUND = {
    "AddOrRemoveOne": "A true number of units far above `unit.atLeast`: it makes batches larger and does not change "
    "the claim.",
    "ZeroOut": "The number of units: `unit.atLeast` is that number, and it is public.",
}
_STARTED_FROM = "What the statement of the adapter that the job started from does not cover."
_SAME_USERS = (
    "The users of the earlier trainings are those of this one: two records belong to one user here if and only if they "
    "do there. This is the word of the job's author."
)
_WELL_FORMED = (
    "That each record of the data set can be used is public: a data set with another one is refused before a step is "
    "charged, so a job that is not refused reveals that there is none."
)
_EACH_HAS_AN_ID = (
    "That each record of the data set has the id of its user is public: a data set with another one is refused before "
    "a step is charged, so a job that is not refused reveals that there is none."
)
_PUBLIC_EVALUATION = (
    "The evaluation data set is public: this is the word of the job's author. A set that shares a file with the data "
    "set, or most of whose records are in it, is refused; other private data are not recognised."
)


@dataclass(frozen=True)
class AggregationStatement:
    """The part of the statement that the aggregation protocol contributes, because only the protocol knows on which
    assumptions its secrecy rests.
    """

    protocol: str
    """The name of the protocol as text. It is the last step in the list of `mechanism.run`."""
    assumed: Sequence[str]
    """Sentences on what the protocol assumes about the network and other parties."""
    not_covered: Sequence[str]
    """Sentences on what the protocol does not protect against."""


@dataclass(frozen=True)
class StatementInputs:
    """The facts of a statement, from the ledger and from the trainer. An absent fact is stated as not known."""

    job_name: str
    job_uid: str
    attempt: int
    place: Place
    mechanism: Mechanism
    unit_at_least: int
    planned_steps: int
    target_epsilon: str
    delta: str
    accountant: composition.AccountantName
    steps_charged: int
    steps_recharged: int
    step: int
    events: Sequence[PrivacyEvent]
    dimension: int
    noise_distance: float
    """Total variation distance between one draw of the noise sampler and the discrete Gaussian."""
    aggregation: AggregationStatement
    adapter_digest: str
    ledger_head: str
    ledger_length: int
    dataset_digest: str | None = None
    lineage: str | None = None
    model: Mapping[str, str] = field(default_factory=dict)
    unit_column: str | None = None
    """The column whose values are the users, if they are the unit."""
    own_units: bool = False
    """Whether each record without the id of a user is a unit by itself."""
    refuses_records: bool = True
    """Whether a record that cannot be used ends the job."""
    started_from: Mapping[str, str] | None = None
    """Address, digests, claim and noise distance of the adapter that the training started from."""
    evaluation: str | None = None
    private_metrics: str = "Hidden"
    remarks: Sequence[str] = ()
    audit_log: tuple[str, int] | None = None
    """Head and length of the audit log, of a job that keeps one."""
    image: str | None = None
    """The image of the workers in a cluster, with its digest where the operator knows it."""
    ray_version: str | None = None


def build_statement(inputs: StatementInputs) -> dict[str, Any]:
    """The statement as a JSON object. Every ε in it has three decimals and is rounded up."""
    claimed = composition.claimed_steps(
        inputs.mechanism,
        planned=inputs.planned_steps,
        charged=inputs.steps_charged,
        target_epsilon=float(inputs.target_epsilon),
        target_delta=inputs.delta,
        accountant=inputs.accountant,
    )
    mechanism, delta, accountant = inputs.mechanism, inputs.delta, inputs.accountant
    return {
        "schema": SCHEMA,
        "job": {"name": inputs.job_name, "uid": inputs.job_uid, "attempt": inputs.attempt, "step": inputs.step},
        "claim": {
            "epsilon": composition.format_epsilon(composition.job_epsilon(mechanism, claimed, delta, accountant)),
            "targetEpsilon": inputs.target_epsilon,
            "delta": delta,
            "unit": mechanism.unit,
            **({"unitColumn": inputs.unit_column} if inputs.unit_column else {}),
            "unitDefinition": UNIT_DEFINITIONS[mechanism.unit][inputs.own_units],
            "adjacency": mechanism.adjacency,
            "adjacencyDefinition": ADJACENCY_DEFINITIONS[mechanism.adjacency],
            "steps": claimed,
            "released": RELEASED,
            "covers": covered_text(mechanism, claimed),
        },
        "spent": {
            "epsilon": composition.format_epsilon(
                composition.job_epsilon(mechanism, inputs.steps_charged, delta, accountant)
            ),
            "stepsCharged": inputs.steps_charged,
            "stepsRecharged": inputs.steps_recharged,
            "stepsPlanned": inputs.planned_steps,
        },
        "mechanism": {
            "assumed": "Poisson-sampled Gaussian, of a σ that is smaller by a share that pays for the noise being "
            "discrete",
            "run": f"{_RUN}, {inputs.aggregation.protocol}",
            **mechanism.model_dump(),
            "dimension": inputs.dimension,
            "noiseDistancePerDraw": f"{inputs.noise_distance:.3e}",
        },
        "events": [event.model_dump(by_alias=True) for event in inputs.events],
        "accounting": {
            "accountant": accountant,
            "library": f"dp-accounting {importlib.metadata.version('dp-accounting')}",
            **({"lossInterval": repr(composition.pld_interval(inputs.events))} if accountant == "PLD" else {}),
            "shareOfSigmaForDiscreteNoise": SHARE_OF_SIGMA,
            "shareOfDeltaForNoiseSampler": SHARE_OF_DELTA,
            "unitAtLeast": inputs.unit_at_least,
        },
        "hashes": {
            "adapter": inputs.adapter_digest,
            "dataset": f"keyed:{inputs.dataset_digest}" if inputs.dataset_digest else NOT_KNOWN,
            "ledgerHead": inputs.ledger_head,
            "ledgerLength": inputs.ledger_length,
            **_audit_log(inputs.audit_log),
            "code": f"tensafe {importlib.metadata.version('tensafe')}",
            "ray": f"ray {inputs.ray_version}" if inputs.ray_version else NOT_KNOWN,
            "image": inputs.image or NOT_KNOWN,
        },
        "model": dict(inputs.model) or NOT_KNOWN,
        **({"startedFrom": dict(inputs.started_from)} if inputs.started_from else {}),
        "lineage": inputs.lineage or NOT_KNOWN,
        "evaluation": inputs.evaluation or "none",
        "privateMetrics": inputs.private_metrics,
        "budget": NOT_KNOWN,
        "assumed": [
            *_ASSUMED,
            *_ASSUMED_OF_WORKERS[inputs.place],
            *((_WELL_FORMED,) if inputs.refuses_records else ()),
            *((_EACH_HAS_AN_ID,) if mechanism.unit == "User" and not inputs.own_units else ()),
            *_on_evaluation(inputs.evaluation),
            *((_SAME_USERS,) if mechanism.earlier_steps and mechanism.unit == "User" else ()),
            *inputs.aggregation.assumed,
        ],
        "notCovered": [
            *_NOT_COVERED,
            *((_PRIVATE_METRICS,) if inputs.private_metrics == "Internal" else ()),
            _BOUND[mechanism.adjacency],
            *((_STARTED_FROM,) if mechanism.earlier_steps else ()),
            *inputs.aggregation.not_covered,
        ],
        "remarks": list(inputs.remarks),
    }


def _audit_log(position: tuple[str, int] | None) -> dict[str, str | int]:
    return {} if position is None else {"auditLogHead": position[0], "auditLogLength": position[1]}


def _started_from(adapter: Mapping[str, str]) -> str:
    return (
        f"{adapter['uri']} (adapter `{adapter['adapter']}`, statement `{adapter['statement']}`, whose claim is "
        f"({adapter['epsilon']}, {adapter['delta']}), and whose noise has a distance of {adapter['noiseDistance']} "
        "from the discrete Gaussian)"
    )


def covered_text(mechanism: Mechanism, claimed: int) -> str:
    """What the claim of a statement covers: the claimed steps of the job, and those of the trainings before it."""
    before = mechanism.steps_before
    earlier = f", and {before} steps of the trainings of the adapter that it started from" if before else ""
    return f"{claimed} steps of this job, in all its attempts and restarts{earlier}"


def canonical_json(value: Mapping[str, Any]) -> bytes:
    """JSON in UTF-8 with sorted keys and without spaces: the bytes that are hashed."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest(content: bytes) -> str:
    """`sha256:` followed by the SHA-256 hash of `content` in hex."""
    return "sha256:" + hashlib.sha256(content).hexdigest()


def recompute_epsilon(document: Mapping[str, Any]) -> str:
    """ε computed again from the privacy events of a statement, in the form of `spent.epsilon`.

    Raises ValueError if the noise of the last event, which is that of the statement's own job, is too small on its grid
    for any ε to hold. Earlier events had grids of their own, which their statements name.
    """
    events = [PrivacyEvent.model_validate(event) for event in document["events"]]
    noise = events[-1].noise_multiplier
    if float(noise) * 2 ** document["mechanism"]["gridBits"] < composition.MIN_NOISE:
        raise ValueError(
            f"events: noise of {noise} clip norms is below {composition.MIN_NOISE:,} steps of the grid, too small for "
            "accounting that assumes continuous noise: this ε does not hold"
        )
    delta = composition.job_delta(document["claim"]["delta"])
    return composition.format_epsilon(
        composition.epsilon_of_events(events, delta, document["accounting"]["accountant"])
    )


def render_markdown(document: Mapping[str, Any]) -> str:
    """The statement as a Markdown page."""
    claim, spent, mechanism = document["claim"], document["spent"], document["mechanism"]
    before = sum(event["steps"] for event in document["events"][:-1])
    earlier = f" and {before} earlier ones" if before else ""
    lines = [
        f"# Privacy statement of {document['job']['name']}, step {document['job']['step']}",
        "",
        f"**({claim['epsilon']}, {claim['delta']})-differential privacy** for {claim['unitDefinition']}, "
        f"under {claim['adjacency']} adjacency ({claim['adjacencyDefinition']}), for {claim['covers']}.",
        "",
        "| | |",
        "|---|---|",
        f"| job | {document['job']['name']}, uid {document['job']['uid']}, attempt {document['job']['attempt']} |",
        f"| unit | {claim['unit']} |",
        *((f"| column of the users | {claim['unitColumn']} |",) if "unitColumn" in claim else ()),
        f"| released | {claim['released']} |",
        f"| ε claimed, of {claim['steps']} steps{earlier} | {claim['epsilon']} |",
        f"| ε spent, of {spent['stepsCharged']} steps ({spent['stepsRecharged']} charged again){earlier} "
        f"| {spent['epsilon']} |",
        f"| planned steps | {spent['stepsPlanned']} |",
        f"| δ | {claim['delta']} |",
        f"| sampling rate q | {mechanism['sampleRate']} |",
        f"| noise multiplier σ | {mechanism['noiseMultiplier']} |",
        f"| clip norm C | {mechanism['clip']} |",
        f"| workers | {mechanism['workers']} |",
        f"| expected batch, in units | {mechanism['expectedBatchSize']} |",
        f"| grid | 2^{mechanism['gridBits']} steps in C, {mechanism['dimension']} coordinates |",
        f"| mechanism that ran | {mechanism['run']} |",
        f"| mechanism assumed by the accounting | {mechanism['assumed']} |",
        *(
            f"| privacy event | {event['steps']} × {event['kind']}, q {event['sampleRate']}, σ "
            f"{event['noiseMultiplier']} |"
            for event in document["events"]
        ),
        f"| distance of the noise sampler from the discrete Gaussian, per draw | {mechanism['noiseDistancePerDraw']} |",
        f"| share of δ that pays for this distance | {document['accounting']['shareOfDeltaForNoiseSampler']} |",
        f"| share of σ that pays for the noise being discrete "
        f"| {document['accounting']['shareOfSigmaForDiscreteNoise']} |",
        f"| accountant | {_accountant(document['accounting'])} |",
        f"| public lower bound of the number of units | {document['accounting']['unitAtLeast']} |",
        f"| model | {_model(document['model'])} |",
        *((f"| started from | {_started_from(document['startedFrom'])} |",) if "startedFrom" in document else ()),
        f"| adapter | `{document['hashes']['adapter']}` |",
        f"| data set | `{document['hashes']['dataset']}` |",
        f"| lineage | {document['lineage']} |",
        f"| ledger | entry {document['hashes']['ledgerLength']}, `{document['hashes']['ledgerHead']}` |",
        *(
            (f"| audit log | entry {document['hashes']['auditLogLength']}, `{document['hashes']['auditLogHead']}` |",)
            if "auditLogHead" in document["hashes"]
            else ()
        ),
        f"| code | {document['hashes']['code']} |",
        f"| Ray | {document['hashes']['ray']} |",
        f"| image | {document['hashes']['image']} |",
        f"| budget of the data set | {document['budget']} |",
        f"| evaluation data set | {document['evaluation']} |",
        f"| private metrics | {document['privateMetrics']} |",
        "",
    ]
    for title, key in (("Assumed", "assumed"), ("Not covered", "notCovered"), ("Remarks", "remarks")):
        if document[key]:
            lines += [f"## {title}", "", *(f"- {sentence}" for sentence in document[key]), ""]
    return "\n".join(lines)


def _on_evaluation(evaluation: str | None) -> tuple[str, ...]:
    public = evaluation is not None and evaluation.startswith("Public")
    return (_PUBLIC_EVALUATION,) if public else ()


def _accountant(accounting: Mapping[str, str]) -> str:
    interval = accounting.get("lossInterval")
    return ", ".join(
        (
            accounting["accountant"],
            *((f"losses at intervals of {interval}",) if interval else ()),
            accounting["library"],
        )
    )


def _model(model: Mapping[str, str] | str) -> str:
    return model if isinstance(model, str) else ", ".join(f"{name} {value}" for name, value in sorted(model.items()))
