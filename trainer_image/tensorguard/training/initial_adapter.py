"""Starts from an adapter that was trained before: `spec.lora.initFrom`.

In: the checkpoint of the earlier job. Out: its weights in this job's model, and what this job's statement says about
it. The earlier training has spent ε, and the operator cannot read checkpoints. So the manifest repeats the earlier
privacy events, every ε of the job counts them, and this module compares them with the statement in the checkpoint. It
also compares the base model, the unit and the LoRA fields: weights of another model would train, and mean nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load as load_tensors

from tensafe_api.privacy_events import EarlierSteps, Mechanism
from tensafe_api.reasons import Reason
from tensafe_api.resources.job import Spec
from tensafe_api.statement import SCHEMA, canonical_json, digest
from tensorguard.checkpoint.layout import ADAPTER_CONFIG, ADAPTER_WEIGHTS, STATEMENT_FILE
from tensorguard.checkpoint.store import CheckpointStore
from tensorguard.storage import filesystem_options
from tensorguard.training.collective_errors import AttemptFailed

_FIELD = "spec.lora.initFrom"


@dataclass(frozen=True)
class InitialAdapter:
    """An adapter whose statement was checked.

    Attributes:
        tensors: its weights, by peft's key.
        summary: for the statement: where it is, the digests of its weights and of its statement, its claim, and
            `noise_distance`.
        noise_distance: total variation between the noise of all earlier trainings and discrete Gaussian noise.
    """

    tensors: Mapping[str, torch.Tensor]
    summary: dict[str, str]
    noise_distance: float


def read_initial_adapter(spec: Spec, mechanism: Mechanism, identity: Mapping[str, str]) -> InitialAdapter | None:
    """The adapter of `spec.lora.initFrom`; None if the job starts from new factors.

    Args:
        mechanism: of this job, with the earlier steps that its ε counts.
        identity: name and digest of this job's base model.

    Raises:
        AttemptFailed: the adapter or its statement does not fit the job; the message names what differs.
        CheckpointError: it cannot be read, or a file is not what its manifest says.
    """
    init_from = spec.lora.init_from
    if init_from is None:
        return None
    folder, _, name = init_from.uri.rstrip("/").rpartition("/")
    _, options = filesystem_options(init_from.uri, spec.storage)
    files = CheckpointStore(folder, options).read(name)
    missing = {ADAPTER_WEIGHTS, ADAPTER_CONFIG, STATEMENT_FILE} - files.keys()
    if missing:
        raise _refusal(f"{init_from.uri} has no {', '.join(sorted(missing))}: choose a checkpoint of a TenSafe job")
    statement, config = json.loads(files[STATEMENT_FILE]), json.loads(files[ADAPTER_CONFIG])
    if statement["schema"] != SCHEMA:
        raise _refusal(f"its statement has the schema {statement['schema']}, and this release reads {SCHEMA}")
    weights = digest(files[ADAPTER_WEIGHTS])
    if statement["hashes"]["adapter"] != weights:
        raise _refusal(f"the statement in {init_from.uri} is that of another adapter: restore the checkpoint")
    _compare("the base model", statement["model"].get("weights"), identity["weights"])
    _compare("the unit", statement["claim"]["unit"], mechanism.unit)
    _compare("the adjacency", statement["claim"]["adjacency"], mechanism.adjacency)
    _compare("lora.alpha", config["lora_alpha"], spec.lora.alpha or 2 * spec.lora.rank)
    spent = _spent(statement)
    if spent != list(mechanism.earlier_steps):
        raise _refusal(
            f"earlierSteps must be those of the statement in {init_from.uri}: write earlierSteps: {_as_yaml(spent)}"
        )
    distance = _noise_distance(statement, spent[-1].steps)
    summary = {
        "uri": init_from.uri,
        "adapter": weights,
        "statement": digest(canonical_json(statement)),
        "epsilon": statement["claim"]["epsilon"],
        "delta": statement["claim"]["delta"],
        "noiseDistance": f"{distance:.3e}",
    }
    return InitialAdapter(load_tensors(files[ADAPTER_WEIGHTS]), summary, distance)


def _spent(statement: Mapping[str, Any]) -> list[EarlierSteps]:
    """The privacy events of a statement. The last one is that of its own job, with the steps that its claim covers."""
    steps = [EarlierSteps.model_validate({key: event[key] for key in _KEYS}) for event in statement["events"]]
    claimed = max(steps[-1].steps, statement["claim"]["steps"])
    return [*steps[:-1], steps[-1].model_copy(update={"steps": claimed})]


_KEYS = ("sampleRate", "noiseMultiplier", "steps")


def _noise_distance(statement: Mapping[str, Any], steps: int) -> float:
    """The distances of all draws of a job with `steps` steps, and of the trainings before it."""
    mechanism = statement["mechanism"]
    draws: int = mechanism["dimension"] * mechanism["workers"] * steps
    before = float(statement.get("startedFrom", {}).get("noiseDistance", 0))
    return draws * float(mechanism["noiseDistancePerDraw"]) + before


def _as_yaml(spent: Sequence[EarlierSteps]) -> str:
    entries = (
        f'{{sampleRate: "{each.sample_rate}", noiseMultiplier: "{each.noise_multiplier}", steps: {each.steps}}}'
        for each in spent
    )
    return f"[{', '.join(entries)}]"


def _compare(what: str, before: object, now: object) -> None:
    if before != now:
        raise _refusal(f"{what} of the earlier job is {before}, and that of this one is {now}: they must be the same")


def _refusal(sentence: str) -> AttemptFailed:
    return AttemptFailed(Reason.INVALID_MANIFEST, f"{_FIELD}: {sentence}")
