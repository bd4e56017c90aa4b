"""All that a reader of a privacy statement is shown: the claim as a sentence, every figure with its unit, ε over the
steps, and how to verify it.

In: a statement as it was read. Out: a `StatementReport`, which the page and `tensafe statement --format json` show. The
statement is not believed: its three ε are computed again here, from its mechanism and its events, and must agree.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from tensafe_api.accounting import composition
from tensafe_api.statement.contents import canonical_json, digest
from tensafe_api.statement.document import (
    Count,
    Epsilon,
    StatementDocument,
    parse_statement,
)
from tensafe_api.statement.figures import check_figures
from tensorguard.statements.sentences import (
    FALSE_ALARMS,
    VERIFY,
    attack_limits,
    claim_sentence,
    meaning_sentences,
    percent,
    unit_words,
)

_RDP_POINTS, _PLD_POINTS = 60, 16
"""An ε by PLD takes a tenth of a second, one by RDP next to nothing."""
_ACCOUNT = "ε of the claim is this ε, rounded up to three decimals (at most 0.001 more, for the noise sampler)"
NATS, PROBABILITY, STEPS = "nats", "probability", "steps"

_Text = tuple[str, str, str]
_FIGURES: dict[str, Sequence[_Text]] = {
    "The claim": (
        ("claim.epsilon", "ε claimed", NATS),
        ("claim.targetEpsilon", "ε that the job may not exceed", NATS),
        ("claim.delta", "δ", PROBABILITY),
        ("claim.steps", "steps that the claim covers", STEPS),
        ("spent.epsilon", "ε of the charged steps", NATS),
        ("spent.stepsCharged", "charged steps, when this was written", STEPS),
        ("spent.stepsRecharged", "of these, run again after a crash", STEPS),
        ("spent.stepsPlanned", "planned steps", STEPS),
        ("job.step", "steps in this adapter", STEPS),
    ),
    "The mechanism": (
        ("mechanism.sampleRate", "sampling rate q: chance that a unit joins a step", PROBABILITY),
        ("mechanism.noiseMultiplier", "noise multiplier σ: standard deviation of the noise", "clip norms"),
        ("mechanism.clip", "clip norm C: bound of a unit's gradient", "L2 norm"),
        ("mechanism.expectedBatchSize", "expected batch", "{units} per step"),
        ("mechanism.workers", "workers that add noise", "workers"),
        ("mechanism.gridBits", "grid: one clip norm is 2 to the power of", "bits"),
        ("mechanism.dimension", "trained weights", "coordinates"),
        ("mechanism.noiseDistancePerDraw", "distance of the noise sampler from the discrete Gaussian", "per draw"),
    ),
    "The accounting": (
        ("accounting.shareOfDeltaForNoiseSampler", "share of δ that pays for this distance", "of δ"),
        ("accounting.shareOfSigmaForDiscreteNoise", "share of σ that pays for the noise being discrete", "of σ"),
        ("accounting.lossInterval", "interval of the privacy losses", NATS),
        ("accounting.unitAtLeast", "public lower bound of the data set", "{units}"),
        ("hashes.ledgerLength", "records in the ledger", "records"),
    ),
}
_FACTS: Sequence[tuple[str, str]] = (
    ("job.name", "job"),
    ("job.uid", "UID of the job"),
    ("job.attempt", "attempt that wrote the adapter"),
    ("claim.unit", "unit"),
    ("claim.unitDefinition", "a unit is"),
    ("claim.unitColumn", "column of the users"),
    ("claim.adjacency", "adjacency"),
    ("claim.adjacencyDefinition", "that is"),
    ("claim.released", "the claim holds for"),
    ("claim.covers", "it covers"),
    ("mechanism.run", "mechanism that ran"),
    ("mechanism.assumed", "mechanism that the accounting assumes"),
    ("accounting.accountant", "accountant"),
    ("accounting.library", "library"),
    ("model", "base model"),
    ("startedFrom", "started from"),
    ("hashes.adapter", "adapter"),
    ("hashes.dataset", "data set"),
    ("hashes.ledgerHead", "head of the ledger"),
    ("hashes.code", "code"),
    ("hashes.ray", "Ray"),
    ("hashes.image", "image"),
    ("lineage", "lineage"),
    ("evaluation", "evaluation data set"),
    ("privateMetrics", "private metrics"),
    ("budget", "budget of the data set"),
)


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)


class Figure(_Part):
    """A figure as the statement has it."""

    field: str = Field(description="Path in the statement; empty if the figure follows from others.")
    label: str
    value: str = Field(description="The same digits as in the statement.")
    unit: str


class FigureGroup(_Part):
    """Figures under one title."""

    title: str
    figures: list[Figure]


class Fact(_Part):
    """A fact that is no figure."""

    field: str = Field(description="Path in the statement.")
    label: str
    value: str


class CurvePoint(_Part):
    """ε after a number of steps."""

    steps: Count = Field(description="Charged steps of this job.")
    epsilon: Epsilon = Field(description="ε in nats, rounded up. Steps of earlier trainings count.")


class Command(_Part):
    """A command that checks a part of the claim."""

    purpose: str
    command: str = Field(description="For a shell. DIR is the folder of the checkpoint.")


class ReportParts(_Part):
    """What a report adds to the statement."""

    schema_: Literal["tensafe.io/statement-report/v1alpha1"] = Field(alias="schema")
    statement_digest: str = Field(description="SHA-256 of the statement as canonical JSON, which is `statement.json`.")
    sentence: str = Field(description="The claim in one sentence.")
    meaning: list[str] = Field(description="What the claim means for one unit, in sentences.")
    figures: list[FigureGroup] = Field(description="Every figure of the statement, and limits of attacks.")
    facts: list[Fact] = Field(description="Every other fact of the statement.")
    curve: list[CurvePoint] = Field(description="ε over the steps. The last point is the claim.", min_length=1)
    checked: list[str] = Field(description="What was checked before the report was written, in sentences.")
    verify: list[Command] = Field(description="Commands for what a report cannot check.")


class StatementReport(ReportParts):
    """What `tensafe statement --format json` prints: the statement as it is, and what the page shows."""

    statement: StatementDocument = Field(description="The content of `statement.json`, unchanged.")


class Report:
    """A statement that was checked, and what a reader is shown of it.

    Attributes:
        raw: the statement as it was read.
        document: the same, with types.
        parts: what is shown beside it.
    """

    def __init__(self, raw: Mapping[str, Any], document: StatementDocument, parts: ReportParts) -> None:
        self.raw, self.document, self.parts = raw, document, parts

    def as_json(self) -> dict[str, Any]:
        """The report as JSON values, of the schema of `StatementReport`."""
        return {**self.parts.model_dump(by_alias=True, mode="json"), "statement": dict(self.raw)}


def build_report(raw: Mapping[str, Any], checked: Sequence[str] = ()) -> Report:
    """The report of a statement.

    Args:
        raw: the statement as it was read from JSON.
        checked: sentences on what the caller has checked.

    Raises:
        StatementError: the statement is malformed, or its figures are not those of its mechanism.
    """
    document = parse_statement(raw)
    check_figures(raw, document)
    parts = ReportParts(
        schema_="tensafe.io/statement-report/v1alpha1",
        statement_digest=digest(canonical_json(raw)),
        sentence=claim_sentence(document),
        meaning=meaning_sentences(document),
        figures=_figures(raw, document),
        facts=_facts(raw),
        curve=_curve(document),
        checked=[
            "The three ε were computed again from the mechanism and the privacy events, and are the same.",
            *checked,
        ],
        verify=_verify(document),
    )
    return Report(raw, document, parts)


def _verify(document: StatementDocument) -> list[Command]:
    """All commands that a page mentions, in the order in which a stranger uses them."""
    own = document.events[-1]
    account = (
        f"tensafe account --noise-multiplier {own.noise_multiplier} --sample-rate {own.sample_rate} "
        f"--steps {document.claim.steps} --delta {document.claim.delta} "
        f"--accountant {document.accounting.accountant.lower()}"
    )
    return [
        Command(
            purpose="Signature, digest of every file, and ε, with the publisher's public key",
            command=VERIFY,
        ),
        Command(
            purpose="The weights are those of the statement: the output must be the digest of the adapter. If they are "
            "encrypted, decrypt them first (tensafe decrypt)",
            command="sha256sum DIR/adapter_model.safetensors",
        ),
        *(() if document.mechanism.earlier_steps else (Command(purpose=_ACCOUNT, command=account),)),
        Command(
            purpose="If the job ran in a cluster: the digest in the ledger is that of the statement",
            command=f"kubectl tensafe statement {shlex.quote(document.job.name)} --read",
        ),
    ]


def _epsilon(document: StatementDocument, steps: int) -> str:
    return composition.format_epsilon(
        composition.job_epsilon(document.mechanism, steps, document.claim.delta, document.accounting.accountant)
    )


def _curve(document: StatementDocument) -> list[CurvePoint]:
    """ε from no step to the claimed ones. There are more points at the start, where ε rises fast."""
    last, count = document.claim.steps, _RDP_POINTS if document.accounting.accountant == "RDP" else _PLD_POINTS
    steps = sorted({round(last * (number / count) ** 2) for number in range(count + 1)})
    return [CurvePoint(steps=each, epsilon=_epsilon(document, each)) for each in steps]


def _figures(raw: Mapping[str, Any], document: StatementDocument) -> list[FigureGroup]:
    _, units = unit_words(document)
    groups = [
        FigureGroup(
            title=title,
            figures=[
                Figure(field=path, label=label, value=_text(value), unit=unit.format(units=units))
                for path, label, unit in figures
                if (value := _find(raw, path)) is not None
            ],
        )
        for title, figures in _FIGURES.items()
    ]
    events = [
        Figure(field=f"events.{place}.{path}", label=label, value=_text(raw["events"][place][path]), unit=unit)
        for place, event in enumerate(document.events)
        for path, label, unit in (
            ("steps", f"event {place + 1}, {event.kind}: steps", STEPS),
            ("sampleRate", f"event {place + 1}: sampling rate", PROBABILITY),
            ("noiseMultiplier", f"event {place + 1}: noise multiplier", "clip norms"),
        )
    ]
    limits = attack_limits(document.claim.epsilon, document.claim.delta)
    attacks = [
        Figure(field="", label="most right guesses at even odds", value=percent(limits.accuracy), unit="%"),
        Figure(
            field="",
            label=f"most members found at {percent(FALSE_ALARMS)} % false alarms",
            value=percent(limits.detected),
            unit="%",
        ),
    ]
    return [
        *groups,
        FigureGroup(title="Privacy events", figures=events),
        FigureGroup(title="Limits of attacks", figures=attacks),
    ]


def _facts(raw: Mapping[str, Any]) -> list[Fact]:
    found = ((path, label, _find(raw, path)) for path, label in _FACTS)
    return [Fact(field=path, label=label, value=_text(value)) for path, label, value in found if value is not None]


def _find(raw: Mapping[str, Any], path: str) -> Any:
    value: Any = raw
    for name in path.split("."):
        if name not in value:
            return None
        value = value[name]
    return value


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {value[name]}" for name in sorted(value))
    return str(value)
