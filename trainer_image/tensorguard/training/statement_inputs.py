"""Collects what the privacy statement of one checkpoint is computed from."""

from __future__ import annotations

import importlib.metadata

from tensafe_api.statement.contents import AggregationStatement, Place, StatementInputs
from tensorguard.ledger.contract import LedgerState
from tensorguard.training.setup import StepComponents


def statement_inputs(
    components: StepComponents,
    place: Place,
    aggregation: AggregationStatement,
    image: str | None,
    state: LedgerState,
    step: int,
    adapter_digest: str,
    *,
    audit_log: tuple[str, int] | None = None,
) -> StatementInputs:
    """The inputs of the statement.

    Args:
        components: of the rank that writes the checkpoint.
        place: where the workers run.
        aggregation: the part of the statement that the aggregation protocol contributes.
        image: of the workers' pods, where it is known.
        state: the ledger when the checkpoint is written.
        step: number of steps in the checkpoint.
        adapter_digest: digest of the adapter's weights, "sha256:" and 64 hexadecimal digits.
        audit_log: its head and length, of a job that keeps one.
    """
    spec = state.spec
    evaluation = components.job.spec.evaluation
    return StatementInputs(
        job_name=spec.job_name,
        job_uid=spec.job_uid,
        attempt=state.attempt,
        place=place,
        mechanism=spec.mechanism,
        unit_at_least=spec.unit_at_least,
        planned_steps=spec.planned_steps,
        target_epsilon=spec.target_epsilon,
        delta=spec.delta,
        accountant=spec.accountant,
        steps_charged=state.steps_charged,
        steps_recharged=state.steps_recharged,
        step=step,
        events=state.events,
        dimension=components.dimension,
        noise_distance=components.noise.total_variation,
        aggregation=aggregation,
        adapter_digest=adapter_digest,
        ledger_head=state.head,
        ledger_length=state.length,
        dataset_digest=state.dataset_digest,
        lineage=spec.lineage,
        model=components.identity,
        unit_column=components.job.spec.dataset.unit.column,
        own_units=components.job.spec.dataset.unit.missing == "OwnUnit",
        refuses_records=components.job.spec.dataset.unusable != "Skip",
        started_from=components.initial.summary if components.initial else None,
        evaluation=f"{evaluation.visibility}: {evaluation.uri}" if evaluation else None,
        private_metrics=components.job.spec.observability.private_metrics,
        remarks=components.remarks,
        audit_log=audit_log,
        image=image,
        ray_version=_ray_version(),
    )


def _ray_version() -> str | None:
    try:
        return importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:  # the checks on a GPU run without Ray
        return None
