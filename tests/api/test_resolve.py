"""The training plan: every default, and no figure that makes a claim too small."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensafe_api import accounting
from tensafe_api.accounting import epsilon, job_delta
from tensafe_api.manifest import dump_manifest, load_manifest
from tensafe_api.privacy_events import PrivacyEvent
from tensafe_api.problems import ManifestError, parse_job
from tensafe_api.resolve import (
    MAX_GRID_BITS,
    MIN_SHARE_SIGMA,
    Claim,
    Plan,
    _grid_bits,
    ledger_spec,
    resolve_job,
    round_down_delta,
)
from tensafe_api.resources.job import TenSafeTrainingJob
from tensafe_api.resources.ledger import COUNTED_ANNOTATION
from tensafe_api.status_fold import privacy_status

ManifestWith = Callable[[Mapping[str, Any]], dict[str, Any]]
Job = Callable[..., TenSafeTrainingJob]


@pytest.fixture
def job(manifest_with: ManifestWith) -> Job:
    """A function that returns the shortest manifest with changes. It sets `noiseMultiplier` to avoid calibration."""

    def make(changes: Mapping[str, Any] | None = None, *, calibrated: bool = False) -> TenSafeTrainingJob:
        given_noise = {} if calibrated else {"spec.privacy.noiseMultiplier": "1"}
        return parse_job(manifest_with({**given_noise, **(changes or {})}))

    return make


def problem(error: pytest.ExceptionInfo[ManifestError]) -> tuple[str, str]:
    (only,) = error.value.problems
    return only.path, only.message


def test_shortest_manifest_resolves_to_the_documented_defaults(job: Job) -> None:
    """5,000 units, three epochs by default: B = min(512, 5000/20)."""
    completed, plan = resolve_job(job(calibrated=True))
    assert plan.mechanism.expected_batch_size == 250
    assert plan.mechanism.sample_rate == "0.05"
    assert (plan.steps, plan.steps_per_epoch) == (60, 20)
    assert plan.delta == "0.00002"
    assert (plan.checkpoint_every, plan.chunk_steps) == (1, 1)
    assert plan.reserve_steps == 6  # min(3 x (1 + 1), 60/10)
    assert plan.evaluate_every == plan.checkpoint_every
    assert plan.warmup_steps == 2  # 0.03 x 60, rounded up
    assert (plan.target_epsilon, plan.accountant) == (8.0, "RDP")
    assert plan.mechanism.workers == 2 and plan.mechanism.colluders == 0
    assert (plan.mechanism.unit, plan.mechanism.clip, plan.mechanism.grid_bits) == ("User", "1.0", 22)
    spec = completed.spec
    assert (spec.training.steps, spec.training.epochs, spec.training.expected_batch_size) == (60, None, 250)
    assert spec.privacy.noise_multiplier == plan.mechanism.noise_multiplier
    assert (spec.privacy.target_delta, spec.privacy.reserve_steps) == ("0.00002", 6)
    assert spec.checkpoint.every_steps == 1
    assert spec.lora.alpha == 2 * spec.lora.rank
    assert spec.dataset.loss_on == "Assistant"


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
    path, message = problem(error)
    assert path == "spec.training.epochs"
    assert "2147483647 steps" in message


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


def test_pld_is_refused_where_its_rounding_is_not_negligible(job: Job) -> None:
    with pytest.raises(ManifestError) as error:
        resolve_job(job({"spec.privacy.accountant": "PLD", "spec.privacy.targetDelta": "9e-9"}))
    path, message = problem(error)
    assert path == "spec.privacy.accountant"
    assert "remove it to use RDP, or raise spec.privacy.targetDelta to 1e-08" in message


def test_charged_steps_stay_within_the_error_bound_of_the_sampler(job: Job) -> None:
    _, plan = resolve_job(job({"spec.privacy.targetEpsilon": "1e12"}))
    assert plan.affordable_steps(0, 10**9) == plan.max_steps == 10 * (plan.steps + plan.reserve_steps)


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


@given(st.integers(1, 2**40))
def test_default_delta_is_at_most_a_tenth_of_one_over_the_units(at_least: int) -> None:
    text = round_down_delta(Decimal(1) / (10 * at_least))
    exact = Fraction(1, 10 * at_least)
    assert exact * Fraction(99, 100) < Fraction(text) <= exact
    assert "e" not in text.lower()


@pytest.mark.parametrize(("batch", "bits"), [(512, 21), (16_384, 16), (250, 22), (1, 22), (100_000, 14)])
def test_grid_is_the_finest_that_fits_an_int32(batch: int, bits: int) -> None:
    assert _grid_bits(batch, 1.0, 2, 0) == bits


@given(st.integers(1, 100_000), st.floats(0.01, 50.0), st.integers(1, 256), st.data())
def test_worst_case_fits_an_int32_and_would_not_on_a_finer_grid(
    batch: int, sigma: float, workers: int, data: st.DataObject
) -> None:
    colluders = data.draw(st.integers(0, workers - 1))
    widest = batch + 8 * math.sqrt(batch) + 8 * sigma * math.sqrt(workers / (workers - colluders))
    try:
        bits = _grid_bits(batch, sigma, workers, colluders)
    except ManifestError:
        assert widest * 2**14 > 2**31 - 1
        return
    assert widest * 2**bits <= 2**31 - 1
    assert bits == MAX_GRID_BITS or widest * 2 ** (bits + 1) > 2**31 - 1


def test_a_batch_whose_worst_case_overflows_the_grid_is_refused(job: Job) -> None:
    changes = {
        "spec.dataset.unit.atLeast": 10**7,
        "spec.training": {"steps": 10, "expectedBatchSize": 200_000},
    }
    with pytest.raises(ManifestError) as error:
        resolve_job(job(changes))
    path, message = problem(error)
    assert path == "spec.training.expectedBatchSize"
    assert "overflows the integer grid" in message and "lower it" in message
    with pytest.raises(ManifestError) as error:
        resolve_job(job({"spec.privacy.noiseMultiplier": "20000"}))
    assert "or lower spec.privacy.noiseMultiplier" in problem(error)[1]


def test_noise_below_64_grid_steps_a_share_is_refused(job: Job) -> None:
    # 2^22 steps in a clip norm over two workers: σ must be above 64·√2/2^22.
    least = 64 * math.sqrt(2) / 2**22
    enough, too_little = f"{least * 1.01:.9f}", f"{least * 0.99:.9f}"
    resolve_job(job({"spec.privacy.noiseMultiplier": enough, "spec.privacy.targetEpsilon": "1e12"}))
    with pytest.raises(ManifestError) as error:
        resolve_job(job({"spec.privacy.noiseMultiplier": too_little}))
    path, message = problem(error)
    assert path == "spec.privacy.noiseMultiplier"
    assert message.endswith("below 64 grid steps: raise it, or lower spec.cluster.workers")


def test_noise_of_many_workers_needs_the_same_total(job: Job) -> None:
    """The share of each of 256 workers has a sixteenth of the noise. The grid of an int32 leaves it enough steps."""
    changes = {"spec.cluster.workers": 256, "spec.privacy.noiseMultiplier": "0.5"}
    few, many = (resolve_job(job(more))[1].mechanism for more in ({"spec.privacy.noiseMultiplier": "0.5"}, changes))
    assert (few.workers, many.workers, many.grid_bits) == (2, 256, few.grid_bits)
    assert many.share_sigma * 16 == pytest.approx(few.share_sigma * math.sqrt(2))
    assert many.share_sigma > MIN_SHARE_SIGMA


def test_noise_with_which_no_step_fits_the_budget_is_refused(job: Job) -> None:
    with pytest.raises(ManifestError) as error:
        resolve_job(job({"spec.privacy.noiseMultiplier": "0.2", "spec.privacy.targetEpsilon": "1"}))
    path, message = problem(error)
    assert path == "spec.privacy.noiseMultiplier"
    assert "the first step alone exceeds spec.privacy.targetEpsilon" in message


def test_a_plan_beyond_the_budget_claims_no_more_than_the_budget_allows(job: Job) -> None:
    _, plan = resolve_job(job({"spec.privacy.noiseMultiplier": "0.9", "spec.privacy.targetEpsilon": "4"}))
    assert plan.epsilon(plan.steps) > 4
    assert 0 < plan.claimed_steps(0) < plan.steps
    assert plan.epsilon_claimed(0) <= 4
    assert plan.claimed_steps(plan.steps) == plan.steps, "the claim covers all charged steps"


def test_unreachable_target_is_refused_at_its_field(job: Job) -> None:
    with pytest.raises(ManifestError) as error:
        resolve_job(job({"spec.privacy.targetEpsilon": "1e-9"}, calibrated=True))
    path, message = problem(error)
    assert path == "spec.privacy.targetEpsilon"
    assert "raise it, or lower spec.training.steps" in message


def test_colluding_workers_make_noise_shares_larger(job: Job) -> None:
    """No manifest may ask for it yet, so this job did not pass the rules of manifests."""
    accepted = job({"spec.cluster.workers": 4})
    colluding = accepted.spec.aggregation.model_copy(update={"colluding_workers": 3})
    spec = accepted.spec.model_copy(update={"aggregation": colluding})
    plan = resolve_job(accepted.model_copy(update={"spec": spec}))[1]
    assert (plan.mechanism.workers, plan.mechanism.colluders) == (4, 3)
    assert plan.mechanism.share_sigma == plan.mechanism.grid
    assert plan.mechanism.outsider_noise_multiplier == 2.0


@pytest.mark.slow
@settings(max_examples=10)
@given(st.sampled_from(["0.5", "1", "3", "8", "20"]), st.integers(1, 3000), st.integers(30, 100_000))
def test_planned_and_reserved_steps_stay_within_the_target(target: str, steps: int, at_least: int) -> None:
    manifest = {
        "apiVersion": "tensafe.io/v1alpha1",
        "kind": "TenSafeTrainingJob",
        "metadata": {"name": "a"},
        "spec": {
            "model": {"name": "m"},
            "dataset": {"uri": "d", "columns": {"text": "t"}, "unit": {"kind": "Example", "atLeast": at_least}},
            "training": {"steps": steps},
            "privacy": {"targetEpsilon": target},
            "checkpoint": {"uri": "c"},
            "cluster": {"workers": 1},
        },
    }
    plan = resolve_job(parse_job(manifest))[1]
    whole = plan.steps + plan.reserve_steps
    assert plan.epsilon(whole) <= float(target)
    assert plan.affordable_steps(0, whole) == whole
    assert plan.epsilon_claimed(0) == plan.epsilon(plan.steps) == plan.epsilon_claimed(plan.steps)
    assert plan.epsilon_claimed(whole) == plan.epsilon(whole)
    beyond = plan.affordable_steps(whole, 10**6)
    assert plan.epsilon(whole + beyond) <= float(target)
    assert whole + beyond == plan.max_steps or float(target) < plan.epsilon(whole + beyond + 1)
    assert plan.affordable_steps(whole + beyond, 10) == 0
    assert plan.affordable_steps(whole + beyond + 5, 10) == 0


def test_job_whose_units_were_counted_claims_zero_out_adjacency(job: Job) -> None:
    """The number of units is then public, which add-or-remove adjacency would not allow."""
    counted = job({"metadata.annotations": {COUNTED_ANNOTATION: "5000"}})
    completed, plan = resolve_job(counted)
    assert plan.mechanism.adjacency == "ZeroOut"
    assert resolve_job(completed)[1].mechanism == plan.mechanism, "the completed manifest makes the same claim"
    assert ledger_spec(completed, plan, "uid").mechanism.adjacency == "ZeroOut"
    assert privacy_status(plan, charged=0, recharged=0).adjacency == "ZeroOut"
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


@pytest.mark.parametrize(
    "changes",
    [
        {"spec.training": {"steps": 20_000}, "spec.privacy.reserveSteps": 1, "spec.privacy.noiseMultiplier": "200"},
        {"spec.privacy.noiseMultiplier": "0.29"},
        {"spec.privacy.targetEpsilon": "20.1", "spec.privacy.noiseMultiplier": "200"},
    ],
)
def test_pld_is_refused_where_it_takes_minutes(changes: Mapping[str, Any], job: Job) -> None:
    with pytest.raises(ManifestError) as error:
        resolve_job(job({"spec.privacy.accountant": "PLD", **changes}))
    path, message = problem(error)
    assert path == "spec.privacy.accountant"
    assert message == (
        "PLD takes minutes and gigabytes above 20000 steps, below a noise multiplier of 0.3 or above a target of 20: "
        "remove it to use RDP"
    )


@pytest.mark.parametrize("accountant", ["RDP", "PLD"])
def test_noise_is_calibrated_for_all_steps_that_may_be_charged(
    accountant: str, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the accountant that computes ε afterwards, at the δ without the share of the noise sampler."""
    asked: dict[str, Any] = {}
    monkeypatch.setattr(accounting, "calibrate", lambda **figures: asked.update(figures) or "200")
    changes = {"spec.training": {"steps": 100, "expectedBatchSize": 250}, "spec.privacy.reserveSteps": 7}
    plan = resolve_job(job({**changes, "spec.privacy.accountant": accountant}, calibrated=True))[1]
    assert plan.mechanism.noise_multiplier == "200"
    expected = {"target_epsilon": 8.0, "sample_rate": 0.05, "steps": 107, "accountant": accountant}
    assert asked == {**expected, "delta": job_delta("0.00002")}


@pytest.mark.parametrize(("value", "text"), [("0.00012399", "0.000123"), ("0.1", "0.1"), ("0.000019999", "0.0000199")])
def test_default_delta_has_three_digits(value: str, text: str) -> None:
    assert round_down_delta(Decimal(value)) == text


def test_counted_number_of_units_is_the_bound_of_the_job(job: Job) -> None:
    with pytest.raises(ManifestError, match=r"the number of units is 5, but spec\.dataset\.unit\.atLeast is 5000"):
        resolve_job(job({"metadata.annotations": {COUNTED_ANNOTATION: "5"}}))


def test_epsilon_of_a_plan_is_computed_from_its_strings(job: Job) -> None:
    plan: Plan = resolve_job(job({"spec.privacy.noiseMultiplier": "0.9"}))[1]
    assert plan.epsilon(60) == epsilon(sample_rate=0.05, noise_multiplier=0.9, steps=60, delta=job_delta("0.00002"))
    assert plan.epsilon(0) == 0.0


def test_rdp_replaces_pld_beyond_its_number_of_steps(job: Job) -> None:
    """A pod writes the charges. With 2^31 of them PLD would need a hundred gigabytes."""
    plan = resolve_job(job({"spec.privacy.accountant": "PLD", "spec.privacy.noiseMultiplier": "200"}))[1]
    reach, far = accounting.PLD_STEPS_LIMIT, 2**31 - 1
    spent = [privacy_status(plan, charged=charged, recharged=0) for charged in (reach, reach + 1, far)]
    for figure in ("epsilon_spent", "epsilon_claimed", "epsilon_against_outsider"):
        within, beyond, furthest = (float(getattr(status, figure)) for status in spent)
        assert within < beyond < furthest, figure
    rdp = privacy_status(replace(plan, accountant="RDP"), charged=far, recharged=0)
    assert rdp == spent[-1].model_copy(update={"accountant": "RDP"})


def test_rdp_replaces_pld_beyond_its_epsilon(job: Job) -> None:
    plan = resolve_job(job({"spec.privacy.accountant": "PLD"}))[1]
    events = [PrivacyEvent(sample_rate=plan.mechanism.sample_rate, noise_multiplier="0.3", steps=1000)]
    by_rdp = accounting.epsilon_of_events(events, 1e-5)
    assert by_rdp > accounting.PLD_EPSILON_LIMIT
    assert accounting.epsilon_of_events(events, 1e-5, "PLD") == by_rdp
