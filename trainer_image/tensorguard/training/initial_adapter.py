"""Starts from an adapter that was trained before: `spec.lora.initFrom`.

In: the checkpoint of the earlier job. Out: its weights in this job's model, and what this job's statement says about
it. The earlier training has spent ε, and the operator cannot read checkpoints. So the manifest repeats the earlier
privacy events, every ε of the job counts them, and this module compares them with the statement in the checkpoint. It
also compares the base model, the unit and the LoRA fields: weights of another model would train, and mean nothing.

A resumed job has a checkpoint of its own, which names what it started from. Then the earlier one is not read again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel
from safetensors.torch import load as load_tensors

from tensafe_api.reasons import Reason
from tensafe_api.resources.job import Spec
from tensafe_api.resources.mechanism import EarlierSteps, Mechanism, earlier_steps_yaml
from tensafe_api.resources.numeric import Count, NoiseMultiplier, SampleRate
from tensafe_api.statement.contents import SCHEMA, UNIT_DEFINITIONS, digest
from tensorguard.checkpoint.encryption import Identities, read_decrypted
from tensorguard.checkpoint.layout import ADAPTER_CONFIG, ADAPTER_WEIGHTS, STATEMENT_FILE
from tensorguard.checkpoint.store import CheckpointAbsent, CheckpointStore
from tensorguard.storage import filesystem_options
from tensorguard.training.collective_errors import AttemptFailed

_FIELD = "spec.lora.initFrom"
_ROUNDING = 1.001
"""More than the rounding of a figure with four digits."""


@dataclass(frozen=True)
class InitialAdapter:
    """An adapter whose statement was checked.

    Attributes:
        tensors: its weights, by peft's key; None if a checkpoint of this job has what was trained from them.
        summary: for the statement: where it is, the digests of its weights and of its statement, its claim, and
            `noise_distance`.
    """

    tensors: Mapping[str, torch.Tensor] | None
    summary: Mapping[str, str]

    @property
    def noise_distance(self) -> float:
        """Total variation between the noise of all earlier trainings and discrete Gaussian noise."""
        return float(self.summary["noiseDistance"])


class _Part(BaseModel):
    """A part of a statement. Other fields of it are not read."""

    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel, allow_inf_nan=False)


class _Event(_Part):
    sample_rate: SampleRate
    noise_multiplier: NoiseMultiplier
    steps: Count


class _Claim(_Part):
    epsilon: str
    delta: str
    unit: str
    unit_column: str | None = None
    unit_definition: str
    adjacency: str
    steps: int = Field(ge=1)


class _Noise(_Part):
    dimension: int = Field(ge=1)
    workers: int = Field(ge=1)
    noise_distance_per_draw: float = Field(ge=0)


class _Model(_Part):
    weights: str


class _Hashes(_Part):
    adapter: str


class _StartedFrom(_Part):
    noise_distance: float = Field(ge=0)


class _Statement(_Part):
    claim: _Claim
    events: tuple[_Event, ...] = Field(min_length=1)
    mechanism: _Noise
    model: _Model
    hashes: _Hashes
    started_from: _StartedFrom = _StartedFrom(noiseDistance=0)

    def spent(self) -> list[EarlierSteps]:
        """The privacy events. The last one is that of the statement's job, with the steps that its claim covers."""
        *before, own = (event.model_dump() for event in self.events)
        own["steps"] = max(own["steps"], self.claim.steps)
        return [EarlierSteps.model_validate(event) for event in (*before, own)]

    def noise_distance(self) -> float:
        """The distances of all draws of the statement's job, and of the trainings before it."""
        steps = max(self.events[-1].steps, self.claim.steps)
        draws = self.mechanism.dimension * self.mechanism.workers * steps
        return draws * self.mechanism.noise_distance_per_draw + self.started_from.noise_distance


def find_initial_adapter(
    spec: Spec,
    mechanism: Mechanism,
    identity: Mapping[str, str],
    own: CheckpointStore,
    job_uid: str,
    identities: Identities | None = None,
) -> InitialAdapter | None:
    """The adapter of `spec.lora.initFrom`; None if the job starts from new factors.

    Args:
        mechanism: of this job, with the earlier steps that its ε counts.
        identity: name and digest of this job's base model.
        own: the store of this job's checkpoints.
        identities: decrypt an encrypted adapter.

    Raises:
        AttemptFailed: the adapter or its statement does not fit the job; the message names what differs.
        DecryptionFailed: it is encrypted, and no identity decrypts it.
        CheckpointError: it cannot be read, or a file is not what its manifest says.
    """
    init_from = spec.lora.init_from
    if init_from is None:
        return None
    for name in reversed(own.names()):
        statement = json.loads(own.read(name, only=(STATEMENT_FILE,))[STATEMENT_FILE])
        if statement["job"]["uid"] == job_uid:
            summary = started_from(statement)
            if summary["uri"] != init_from.uri:
                raise AttemptFailed(
                    Reason.CONFIGURATION_CHANGED,
                    f"{_FIELD}: this job started from {summary['uri']}: resume it with that uri, or start a new job",
                )
            return InitialAdapter(None, summary)
    return read_initial_adapter(spec, mechanism, identity, identities)


def started_from(statement: Mapping[str, Any]) -> dict[str, str]:
    """What a statement of this job says about the adapter that it started from; empty if nothing."""
    return dict(statement.get("startedFrom") or {})


def read_initial_adapter(
    spec: Spec, mechanism: Mechanism, identity: Mapping[str, str], identities: Identities | None = None
) -> InitialAdapter:
    """Read the adapter of `spec.lora.initFrom`, which is set, and compare it with the job. Arguments and errors are
    those of `find_initial_adapter`.
    """
    init_from = spec.lora.init_from
    assert init_from is not None, "the caller has checked it"
    files = _files_of(init_from.uri, spec, identities)
    statement, config = _parse(files[STATEMENT_FILE], init_from.uri), json.loads(files[ADAPTER_CONFIG])
    weights = digest(files[ADAPTER_WEIGHTS])
    if statement.hashes.adapter != weights:
        raise _refusal(f"the statement in {init_from.uri} is that of another adapter: restore the checkpoint")
    _compare("the base model", statement.model.weights, identity["weights"])
    _compare("the unit", statement.claim.unit, mechanism.unit)
    _compare("the adjacency", statement.claim.adjacency, mechanism.adjacency)
    _compare_users(spec, statement.claim)
    _compare("lora.rank", config.get("r"), spec.lora.rank)
    _compare("lora.alpha", config.get("lora_alpha"), spec.lora.alpha or 2 * spec.lora.rank)
    spent = statement.spent()
    if spent != list(mechanism.earlier_steps):
        raise _refusal(
            f"earlierSteps must be those of the statement in {init_from.uri}: write earlierSteps: "
            f"{earlier_steps_yaml(spent)}"
        )
    summary = {
        "uri": init_from.uri,
        "adapter": weights,
        "statement": digest(files[STATEMENT_FILE]),
        "epsilon": statement.claim.epsilon,
        "delta": statement.claim.delta,
        "noiseDistance": f"{statement.noise_distance() * _ROUNDING:.3e}",
    }
    return InitialAdapter(load_tensors(files[ADAPTER_WEIGHTS]), summary)


def _files_of(uri: str, spec: Spec, identities: Identities | None) -> dict[str, bytes]:
    folder, _, name = uri.rstrip("/").rpartition("/")
    _, options = filesystem_options(uri, spec.storage)
    try:
        wanted = (ADAPTER_WEIGHTS, ADAPTER_CONFIG, STATEMENT_FILE)
        return read_decrypted(CheckpointStore(folder, options), name, identities, only=wanted)
    except CheckpointAbsent as absent:
        raise _refusal(
            f"{uri} is not a checkpoint of a TenSafe job, it has no {absent.file}: write the folder of a checkpoint, "
            "such as runs/first/checkpoints/final"
        ) from absent


def _parse(content: bytes, uri: str) -> _Statement:
    document = json.loads(content)
    if document.get("schema") != SCHEMA:
        raise _refusal(f"its statement has the schema {document.get('schema')}, and this release reads {SCHEMA}")
    try:
        return _Statement.model_validate(document)
    except ValidationError as error:
        field = ".".join(map(str, error.errors()[0]["loc"]))
        raise _refusal(f"the statement in {uri} cannot be used, because of its {field}: restore it") from error


def _compare_users(spec: Spec, claim: _Claim) -> None:
    """ε composes for one person only if both trainings have the same users."""
    unit, init_from, column = spec.dataset.unit, spec.lora.init_from, claim.unit_column
    assert init_from is not None, "the caller has checked it"
    if unit.kind == "User" and column != (init_from.unit_column or unit.column):
        raise _refusal(
            f"the users of the earlier job are those of its column {column}, and those of this one are those of its "
            f"column {unit.column}: if both name the same people, write unitColumn: {column}; otherwise ε would not "
            "hold for either"
        )
    own_units = claim.unit_definition == UNIT_DEFINITIONS["User"][True]
    if unit.kind == "User" and own_units and unit.missing != "OwnUnit":
        raise _refusal(
            "in the earlier job each record without a user id is a unit by itself, and the statement of this one would "
            "not say so: set spec.dataset.unit.missing to OwnUnit"
        )


def _compare(what: str, before: object, now: object) -> None:
    if before != now:
        raise _refusal(f"{what} of the earlier job is {before}, and that of this one is {now}: they must be the same")


def _refusal(sentence: str) -> AttemptFailed:
    return AttemptFailed(Reason.INVALID_MANIFEST, f"{_FIELD}: {sentence}")
