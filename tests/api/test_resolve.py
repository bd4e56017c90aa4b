"""The plan of a job: every default, the steps, and the ledger that is made of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from tensafe_api.job_status import COMPUTED, privacy_status
from tensafe_api.manifest.text import dump_manifest, load_manifest
from tensafe_api.manifest.validation import ManifestError
from tensafe_api.resolve import Claim, ledger_spec, resolve_job
from tensafe_api.resources.job import TenSafeTrainingJob
from tensafe_api.resources.ledger import COUNTED_ANNOTATION
from tensafe_api.tasks import TASKS

Job = Callable[..., TenSafeTrainingJob]


@pytest.mark.slow
def test_shortest_manifest_resolves_to_the_documented_defaults(job: Job) -> None:
    """5,000 units, three epochs by default: B = min(512, 5000/20)."""
    completed, plan = resolve_job(job(calibrated=True))
    spec = completed.spec
    assert plan.mechanism.expected_batch_size == 250
    assert plan.mechanism.sample_rate == "0.05"
    assert (plan.steps, plan.steps_per_epoch) == (60, 20)
    assert plan.delta == "0.00002"
    assert (plan.checkpoint_every, plan.chunk_steps) == (1, 1)
    assert plan.reserve_steps == 6  # min(3 x (1 + 1), 60/10)
    assert plan.evaluate_every == plan.checkpoint_every
    assert plan.warmup_steps == 2  # 0.03 x 60, rounded up
    assert (plan.target_epsilon, plan.accountant, spec.privacy.accountant) == (8.0, "PLD", "PLD")
    assert plan.mechanism.workers == 2
    assert (plan.mechanism.unit, plan.mechanism.clip, plan.mechanism.grid_bits) == ("User", "1.0", 22)
    assert (spec.training.steps, spec.training.epochs, spec.training.expected_batch_size) == (60, None, 250)
    assert spec.privacy.noise_multiplier == plan.mechanism.noise_multiplier
    assert (spec.privacy.target_delta, spec.privacy.reserve_steps) == ("0.00002", 6)
    assert spec.checkpoint.every_steps == 1
    assert spec.lora.alpha == 2 * spec.lora.rank
    assert spec.dataset.loss_on == "Assistant"


@pytest.mark.slow
def test_resolving_again_changes_nothing(job: Job) -> None:
    for one in (
        job(calibrated=True),
        job({"spec.training": {"steps": 777}, "spec.lora": {"rank": 4, "alpha": 5}}),
        job({"spec.evaluation": {"uri": "s3://e/", "visibility": "Public"}}),
    ):
        completed, plan = resolve_job(one)
        assert resolve_job(completed) == (completed, plan)
        written = load_manifest(dump_manifest(completed))
        assert resolve_job(written) == (completed, plan)


def test_values_in_the_manifest_are_kept(job: Job) -> None:
    written = {
        "spec.training": {"steps": 123, "expectedBatchSize": 77, "warmupRatio": "0.1"},
        "spec.privacy.targetDelta": "1e-6",
        "spec.privacy.reserveSteps": 0,
        "spec.privacy.noiseMultiplier": "0.9",
        "spec.checkpoint.everySteps": 9,
        "spec.evaluation": {"uri": "s3://e/", "visibility": "Public", "everySteps": 13},
        "spec.lora": {"rank": 4, "alpha": 99},
        "spec.dataset.lossOn": "All",
    }
    completed, plan = resolve_job(job(written))
    assert (plan.steps, plan.mechanism.expected_batch_size, plan.delta) == (123, 77, "1e-6")
    assert (plan.reserve_steps, plan.checkpoint_every, plan.evaluate_every, plan.warmup_steps) == (0, 9, 13, 13)
    assert plan.mechanism.noise_multiplier == "0.9"
    assert (completed.spec.lora.alpha, completed.spec.dataset.loss_on) == (99, "All")
    assert completed.spec.evaluation is not None and completed.spec.evaluation.every_steps == 13


@pytest.mark.parametrize(
    ("at_least", "batch"), [(1, 1), (19, 1), (40, 2), (5000, 250), (10_239, 511), (10_240, 512), (10**9, 512)]
)
def test_default_batch_is_a_twentieth_of_the_units_up_to_512(at_least: int, batch: int, job: Job) -> None:
    assert resolve_job(job({"spec.dataset.unit.atLeast": at_least}))[1].mechanism.expected_batch_size == batch


@pytest.mark.parametrize(
    ("at_least", "batch", "rate"),
    [
        (3, 1, "0.3333333334"),
        (40_000, 512, "0.0128"),
        (7, 7, "1"),
        (6000, 1000, "0.1666666667"),
        (2**40, 1, "0.0000000001"),
    ],
)
def test_sample_rate_is_rounded_up(at_least: int, batch: int, rate: str, job: Job) -> None:
    changes = {"spec.dataset.unit.atLeast": at_least, "spec.training": {"steps": 1, "expectedBatchSize": batch}}
    found = resolve_job(job(changes))[1].mechanism.sample_rate
    assert found == rate
    assert Fraction(found) >= Fraction(batch, at_least)


@pytest.mark.parametrize(
    ("epochs", "at_least", "batch", "steps"),
    [
        ("3", 5000, 250, 60),
        ("1", 1001, 100, 11),
        ("0.5", 1000, 100, 5),
        ("0.0001", 1000, 100, 1),
        # With floats there would be one step more: 1.1 x 1000 / 100 is 11.000000000000002.
        ("1.1", 1000, 100, 11),
        ("0.1", 30, 1, 3),
        ("1e1", 30, 1, 300),
    ],
)
def test_epochs_count_passes_over_the_public_bound(
    epochs: str, at_least: int, batch: int, steps: int, job: Job
) -> None:
    changes = {"spec.dataset.unit.atLeast": at_least, "spec.training": {"epochs": epochs, "expectedBatchSize": batch}}
    assert resolve_job(job(changes))[1].steps == steps


def test_epochs_beyond_the_maximum_number_of_steps_are_refused(job: Job) -> None:
    with pytest.raises(ManifestError) as error:
        resolve_job(job({"spec.training": {"epochs": "1e200"}}))
    (problem,) = error.value.problems
    assert problem.path == "spec.training.epochs"
    assert "2147483647 steps" in problem.message


@pytest.mark.parametrize(
    ("steps", "attempts", "every", "expected"),
    [
        # chunk = steps/100; reserve = min(attempts x (every + chunk), steps/10)
        (2000, 3, None, (40, 20, 180)),
        (2000, 1, None, (40, 20, 60)),
        (2000, 3, 100, (100, 20, 200)),
        (9, 3, None, (1, 1, 0)),
        (10, 3, None, (1, 1, 1)),
        (49, 1, None, (1, 1, 2)),
    ],
)
def test_defaults_of_checkpoints_chunks_and_reserve(
    steps: int, attempts: int, every: int | None, expected: tuple[int, int, int], job: Job
) -> None:
    changes = {
        "spec.training": {"steps": steps},
        "spec.retry.maxAttempts": attempts,
        "spec.checkpoint.everySteps": every,
    }
    plan = resolve_job(job(changes))[1]
    assert (plan.checkpoint_every, plan.chunk_steps, plan.reserve_steps) == expected


def test_training_takes_three_epochs_by_default(job: Job) -> None:
    for training in ({}, {"learningRate": "5e-3"}):
        plan = resolve_job(job({"spec.training": {**training, "expectedBatchSize": 100}}))[1]
        assert plan.steps == 3 * plan.steps_per_epoch


@pytest.mark.parametrize(
    ("ratio", "steps", "warmup"), [("0", 100, 0), ("0.07", 100, 7), ("0.03", 10, 1), ("1", 10, 10)]
)
def test_warm_up_is_rounded_up_exactly(ratio: str, steps: int, warmup: int, job: Job) -> None:
    """With floats 0.07 x 100 is 7.000000000000001."""
    assert resolve_job(job({"spec.training": {"steps": steps, "warmupRatio": ratio}}))[1].warmup_steps == warmup


@pytest.mark.parametrize(
    ("columns", "task", "expected"),
    [
        ({"messages": "m"}, "CausalLM", "Assistant"),
        ({"prompt": "p", "completion": "c"}, "CausalLM", "Completion"),
        ({"text": "t"}, "CausalLM", "All"),
        ({"text": "t", "label": "l"}, "SequenceClassification", None),
        ({"image": "i", "label": "l"}, "ImageClassification", None),
    ],
)
def test_default_of_loss_on_follows_from_the_columns(
    columns: dict[str, str], task: str, expected: Any, job: Job
) -> None:
    changes: dict[str, Any] = {"spec.dataset.columns": columns, "spec.model.task": task}
    if task != "CausalLM":
        changes["spec.model.numLabels"] = 2
    spec = resolve_job(job(changes))[0].spec
    assert spec.dataset.loss_on == expected
    no_text = task == "ImageClassification"
    assert (spec.training.max_length, spec.dataset.over_length) == ((None, None) if no_text else (512, "Truncate"))


def test_job_whose_units_were_counted_claims_zero_out_adjacency(job: Job) -> None:
    """The number of units is then public, which add-or-remove adjacency would not allow."""
    counted = job({"metadata.annotations": {COUNTED_ANNOTATION: "5000"}})
    completed, plan = resolve_job(counted)
    assert plan.mechanism.adjacency == "ZeroOut"
    assert resolve_job(completed)[1].mechanism == plan.mechanism, "the completed manifest makes the same claim"
    assert ledger_spec(completed, plan, "uid").mechanism.adjacency == "ZeroOut"
    assert privacy_status(plan, COMPUTED.spent(plan, 0), charged=0, recharged=0).adjacency == "ZeroOut"
    bounded = resolve_job(job())[1]
    assert bounded.mechanism.adjacency == "AddOrRemoveOne"
    assert plan == replace(bounded, mechanism=plan.mechanism), "no other figure differs"


def test_ledger_keeps_every_figure_of_the_claim(job: Job) -> None:
    """The trainer and the operator compute ε of what was charged from the ledger alone."""
    written = {
        "spec.dataset.lineage": "claims-2026",
        "spec.training": {"steps": 123, "expectedBatchSize": 77},
        "spec.privacy.targetDelta": "1e-6",
        "spec.privacy.reserveSteps": 7,
        "spec.privacy.noiseMultiplier": "200",
        "spec.privacy.targetEpsilon": "3",
        "spec.privacy.accountant": "PLD",
    }
    completed, plan = resolve_job(job(written))
    ledger = ledger_spec(completed, plan, "some-uid")
    claim = Claim.of(ledger)
    assert claim == plan.claim
    assert (claim.steps, claim.reserve_steps, claim.target_epsilon, claim.delta) == (123, 7, 3.0, "1e-6")
    assert (claim.accountant, claim.mechanism.noise_multiplier) == ("PLD", "200")
    assert (ledger.job_name, ledger.job_uid) == (completed.metadata.name, "some-uid")
    assert (ledger.lineage, ledger.unit_at_least) == ("claims-2026", completed.spec.dataset.unit.at_least)


def test_counted_number_of_units_is_the_bound_of_the_job(job: Job) -> None:
    with pytest.raises(ManifestError, match=r"the number of units is 5, but spec\.dataset\.unit\.atLeast is 5000"):
        resolve_job(job({"metadata.annotations": {COUNTED_ANNOTATION: "5"}}))


def test_every_default_is_written_into_the_completed_manifest(job: Job) -> None:
    public = {"uri": "s3://e/", "visibility": "Public"}
    changes = {"spec.evaluation": public, "spec.lora": {"rank": 5}, "spec.training.epochs": "3"}
    completed, plan = resolve_job(job(changes))
    spec = completed.spec
    assert (spec.training.steps, spec.training.epochs, spec.training.expected_batch_size) == (60, None, 250)
    assert (spec.training.max_length, spec.dataset.over_length, spec.dataset.loss_on) == (512, "Truncate", "Assistant")
    assert (spec.privacy.target_delta, spec.privacy.noise_multiplier, spec.privacy.reserve_steps) == ("0.00002", "1", 6)
    assert spec.checkpoint.every_steps == plan.checkpoint_every == 1
    assert spec.evaluation is not None and spec.evaluation.every_steps == plan.evaluate_every == 1
    assert (spec.lora.rank, spec.lora.alpha) == (5, 10)


def test_unit_of_the_mechanism_is_that_of_the_manifest(job: Job) -> None:
    """A user has a maximum number of examples, and an example has none."""
    user, example = ({"kind": "User", "column": "p", "atLeast": 5000}, {"kind": "Example", "atLeast": 5000})
    units = []
    for unit in (user, example, {**user, "maxExamplesPerUnit": 3}):
        completed, plan = resolve_job(job({"spec.dataset.unit": unit}))
        units.append((plan.mechanism.unit, completed.spec.dataset.unit.max_examples_per_unit))
    assert units == [("User", 8), ("Example", None), ("User", 3)]


def test_epoch_of_a_batch_of_all_units_has_one_step(job: Job) -> None:
    plan = resolve_job(job({"spec.training.expectedBatchSize": 5000, "spec.privacy.noiseMultiplier": "20"}))[1]
    assert (plan.mechanism.sample_rate, plan.steps_per_epoch, plan.steps) == ("1", 1, 3)


def test_ledger_keeps_what_decides_about_the_claim_besides_epsilon(job: Job) -> None:
    """A ledger that could be resumed with another evaluation, verification or private metrics would claim too much."""
    plain, changed = (
        ledger_spec(*resolve_job(job(changes)), "uid")
        for changes in (
            {},
            {
                "spec.aggregation.verify": "Disabled",
                "spec.observability.privateMetrics": "Internal",
                "spec.evaluation": {"uri": "s3://e/", "visibility": "Private"},
            },
        )
    )
    assert (plain.verify, plain.private_metrics, plain.evaluation) == ("Standard", "Hidden", "Nothing")
    assert (changed.verify, changed.private_metrics, changed.evaluation) == ("Disabled", "Internal", "Private")


@pytest.mark.parametrize(
    ("columns", "task", "rate"),
    [
        ({"prompt": "p", "completion": "c"}, "CausalLM", TASKS["CausalLM"].learning_rate),
        ({"text": "t", "label": "l"}, "SequenceClassification", TASKS["SequenceClassification"].learning_rate),
    ],
)
def test_learning_rate_is_that_of_the_task_unless_it_is_set(
    columns: Mapping[str, str], task: str, rate: str, job: Job
) -> None:
    model: dict[str, Any] = {"name": "m", "task": task} | ({"numLabels": 2} if "label" in columns else {})
    changes: dict[str, Any] = {"spec.dataset.columns": columns, "spec.model": model}
    assert resolve_job(job(changes))[0].spec.training.learning_rate == rate
    given = {**changes, "spec.training": {"learningRate": "3e-3"}}
    assert resolve_job(job(given))[0].spec.training.learning_rate == "3e-3"
