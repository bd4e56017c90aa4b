"""Resolves a job into its training plan: all figures that a run needs.

A manifest omits most fields. `resolve_job` fills every default that depends on another field, calibrates σ, and returns
the completed job with its `Plan`. `tensafe validate` prints the plan, a suspended job shows it in its status, and the
ledger freezes it when the job is admitted. The function is pure, so the command line, the trainer and the operator
always compute the same figures.

Only public figures come in: `unit.atLeast`, not the true number of units. If the annotation of the job states that the
units were counted, their number is public, and the claim is under zero-out adjacency.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from decimal import Decimal
from fractions import Fraction

from tensafe_api.accounting import accountant_choice, composition
from tensafe_api.accounting.accountant_choice import MAX_REPETITIONS
from tensafe_api.accounting.calibration import CalibrationError
from tensafe_api.manifest.text import ManifestError, Problem
from tensafe_api.resources.job import Spec, TenSafeTrainingJob
from tensafe_api.resources.ledger import COUNTED_ANNOTATION, LedgerSpec
from tensafe_api.resources.mechanism import EarlierSteps, Mechanism, earlier_events, round_up
from tensafe_api.resources.numeric import parse_decimal
from tensafe_api.resources.training import DEFAULT_MAX_LENGTH, Privacy
from tensafe_api.tasks import TASKS, image_columns, shape_for

SAMPLE_RATE_DIGITS = 10
MIN_GRID_BITS = 14
MAX_GRID_BITS = 22

DEFAULT_EXAMPLES_PER_UNIT = 8
DEFAULT_EPOCHS = "3"
HEAD_BATCH = 100_000
"""The largest default batch where only the head is trained: the integer grid has room for about 130,000 clip norms."""
HEAD_STEPS = 100
"""Default number of steps where only the head is trained, each on all units: a step costs next to nothing then."""
CARRIER_MAX = 2**31 - 1
MAX_STEPS = 2**31 - 1
"""The maximum of `spec.training.steps`."""
PASSES_FOR_STATES = 2.0
"""Passes over the records from which it saves time to compute what is frozen in one more pass."""


@dataclass(frozen=True)
class Claim:
    """Everything that a privacy claim rests on, and the ε of charged steps.

    Each step reveals one noised sum. Every ε is a float at `composition.job_delta(delta)`.
    """

    mechanism: Mechanism
    steps: int
    reserve_steps: int
    target_epsilon: float
    delta: str
    accountant: composition.AccountantName

    @classmethod
    def of(cls, ledger: LedgerSpec) -> Claim:
        """The claim that a ledger was created for."""
        return cls(
            mechanism=ledger.mechanism,
            steps=ledger.planned_steps,
            reserve_steps=ledger.reserve_steps,
            target_epsilon=parse_decimal(ledger.target_epsilon),
            delta=ledger.delta,
            accountant=ledger.accountant,
        )

    @property
    def max_steps(self) -> int:
        """The maximum number of charged steps for any target: the error bound of the noise sampler covers so many."""
        return MAX_REPETITIONS * (self.steps + self.reserve_steps)

    def epsilon(self, charged: int) -> float:
        """ε of `charged` steps."""
        return composition.job_epsilon(self.mechanism, charged, self.delta, self.accountant)

    def affordable_steps(self, charged: int, wanted: int) -> int:
        """How many of `wanted` further steps can be charged after `charged` steps before ε exceeds the target."""
        planned = self.steps + self.reserve_steps
        if charged + wanted <= planned and self.epsilon(planned) <= self.target_epsilon:
            return wanted  # with PLD this one ε serves the whole run
        within = composition.steps_within(
            target_epsilon=self.target_epsilon,
            sample_rate=float(self.mechanism.sample_rate),
            noise_multiplier=float(self.mechanism.noise_multiplier),
            delta=composition.job_delta(self.delta),
            accountant=self.accountant,
            earlier=self.mechanism.earlier_events,
            at_most=min(charged + wanted, self.max_steps),
        )
        return max(0, within - charged)

    def claimed_steps(self, charged: int) -> int:
        """The number of steps to sign off (`composition.claimed_steps`)."""
        return composition.claimed_steps(
            self.mechanism,
            planned=self.steps,
            charged=charged,
            target_epsilon=self.target_epsilon,
            target_delta=self.delta,
            accountant=self.accountant,
        )

    def epsilon_claimed(self, charged: int) -> float:
        """ε of the steps to sign off."""
        return self.epsilon(self.claimed_steps(charged))


@dataclass(frozen=True)
class Plan(Claim):
    """All figures that a run needs: the privacy claim, and the schedule in steps."""

    steps_per_epoch: int
    chunk_steps: int
    checkpoint_every: int
    evaluate_every: int
    warmup_steps: int

    @property
    def passes(self) -> float:
        """How often a record is computed in the run, on average: steps times sample rate."""
        return self.steps * float(self.mechanism.sample_rate)

    @property
    def claim(self) -> Claim:
        """The privacy claim without the schedule."""
        return Claim(**{each.name: getattr(self, each.name) for each in fields(Claim)})


def resolve_job(job: TenSafeTrainingJob) -> tuple[TenSafeTrainingJob, Plan]:
    """The job with every default filled in, and its plan.

    Raises:
        ManifestError: there is no valid plan, for example because no σ reaches the target, or because the worst case
            overflows the integer grid.
    """
    spec = job.spec
    at_least = spec.dataset.unit.at_least
    batch = spec.training.expected_batch_size or _default_batch(spec)
    if batch > at_least:
        raise _problem(
            "spec.training.expectedBatchSize", f"{batch} is more than spec.dataset.unit.atLeast ({at_least}): lower it"
        )
    sample_rate = round_up(Decimal(batch) / Decimal(at_least), SAMPLE_RATE_DIGITS)
    steps_per_epoch = max(1, math.ceil(at_least / batch))
    steps = spec.training.steps or _default_steps(spec, batch)
    if steps > MAX_STEPS:
        raise _problem(
            "spec.training.epochs", f"{spec.training.epochs} epochs are more than {MAX_STEPS} steps: lower it"
        )
    checkpoint_every = spec.checkpoint.every_steps or max(1, steps // 50)
    chunk = max(1, steps // 100)
    reserve = spec.privacy.reserve_steps
    if reserve is None:
        reserve = min(spec.retry.max_attempts * (checkpoint_every + chunk), steps // 10)
    delta = spec.privacy.target_delta or round_down_delta(Decimal(1) / (10 * at_least))
    target = parse_decimal(spec.privacy.target_epsilon)
    earlier = spec.lora.init_from.earlier_steps if spec.lora.init_from else ()
    accountant, sigma = _accountant_and_sigma(spec.privacy, target, sample_rate, steps + reserve, delta, earlier)
    counted = job.metadata.annotations.get(COUNTED_ANNOTATION)
    if counted not in (None, str(at_least)):
        raise _problem(
            f"metadata.annotations[{COUNTED_ANNOTATION}]",
            f"the number of units is {counted}, but spec.dataset.unit.atLeast is {at_least}: remove the annotation, "
            "which is for jobs whose units were counted",
        )
    mechanism = Mechanism(
        sample_rate=sample_rate,
        noise_multiplier=sigma,
        clip=spec.privacy.max_grad_norm,
        unit="User" if spec.dataset.unit.kind == "User" else "Example",
        adjacency="ZeroOut" if counted else "AddOrRemoveOne",
        workers=spec.cluster.ranks,
        grid_bits=_grid_bits(batch, float(sigma)),
        expected_batch_size=batch,
        earlier_steps=earlier,
    )
    if float(sigma) * mechanism.grid < composition.MIN_NOISE:
        raise _problem(
            "spec.privacy.noiseMultiplier",
            f"with σ = {sigma} the noise is below {composition.MIN_NOISE:,} steps of the integer grid: raise it, or "
            "lower spec.training.expectedBatchSize",
        )
    plan = Plan(
        mechanism=mechanism,
        steps=steps,
        reserve_steps=reserve,
        steps_per_epoch=steps_per_epoch,
        chunk_steps=chunk,
        checkpoint_every=checkpoint_every,
        evaluate_every=(spec.evaluation.every_steps if spec.evaluation else None) or checkpoint_every,
        warmup_steps=math.ceil(Fraction(spec.training.warmup_ratio) * steps),
        target_epsilon=target,
        delta=delta,
        accountant=accountant,
    )
    if not plan.affordable_steps(0, 1):
        raise _problem(
            "spec.privacy.noiseMultiplier",
            f"with σ = {sigma} the first step alone exceeds spec.privacy.targetEpsilon ({target:g}): "
            "raise it, or remove it to have it computed",
        )
    return _completed(job, plan), plan


def _default_batch(spec: Spec) -> int:
    at_least = spec.dataset.unit.at_least
    return min(HEAD_BATCH, at_least) if spec.head_only else max(1, min(512, at_least // 20))


def _default_steps(spec: Spec, batch: int) -> int:
    if spec.head_only and spec.training.epochs is None:
        return HEAD_STEPS
    return math.ceil(Fraction(spec.training.epochs or DEFAULT_EPOCHS) * spec.dataset.unit.at_least / batch)


def keeps_states(spec: Spec, plan: Plan) -> bool:
    """Whether workers compute the frozen lower layers once, where there are any (`training.frozenPrefix`).

    Workers that share a base model do not: they pass its parts on in every pass.
    """
    return spec.training.frozen_prefix != "Off" and spec.ranks_per_base == 1 and plan.passes >= PASSES_FOR_STATES


def learning_rate(spec: Spec) -> str:
    """The peak learning rate of a job: its own, or the default of its task."""
    return spec.training.learning_rate or TASKS[spec.model.task].learning_rate


def ledger_spec(job: TenSafeTrainingJob, claim: Claim, uid: str) -> LedgerSpec:
    """The spec of the ledger of `job`, which has this `uid`."""
    spec = job.spec
    return LedgerSpec(
        job_name=job.metadata.name,
        job_uid=uid,
        lineage=spec.dataset.lineage,
        mechanism=claim.mechanism,
        unit_at_least=spec.dataset.unit.at_least,
        planned_steps=claim.steps,
        reserve_steps=claim.reserve_steps,
        target_epsilon=spec.privacy.target_epsilon,
        delta=claim.delta,
        accountant=claim.accountant,
        verify=spec.aggregation.verify,
        private_metrics=spec.observability.private_metrics,
        evaluation=spec.evaluation.visibility if spec.evaluation else "Nothing",
    )


def round_down_delta(value: Decimal) -> str:
    """`value` with three significant digits, rounded down, in plain notation.

    Rounding down makes a default δ claim at most what its formula gives.
    """
    digits = 2 - value.adjusted()
    scaled = int(value.scaleb(digits))  # truncates
    return f"{Decimal(scaled).scaleb(-digits).normalize():f}"


def _accountant_and_sigma(
    privacy: Privacy, target: float, sample_rate: str, steps: int, delta: str, earlier: tuple[EarlierSteps, ...]
) -> tuple[composition.AccountantName, str]:
    events = earlier_events(earlier)
    spent = composition.epsilon_of_events(events, composition.job_delta(delta), "RDP")
    if spent > target:
        spent = min(spent, composition.epsilon_of_events(events, composition.job_delta(delta), "PLD"))
    if spent > target:
        raise _problem(
            "spec.privacy.targetEpsilon",
            f"{target:g} is below the epsilon of spec.lora.initFrom, which is {composition.format_epsilon(spent)} and "
            "counts too: raise it",
        )
    try:
        return accountant_choice.choose(
            privacy.accountant,
            privacy.noise_multiplier,
            target_epsilon=target,
            sample_rate=float(sample_rate),
            steps=steps,
            delta=composition.job_delta(delta),
            earlier=events,
        )
    except accountant_choice.PLDLimitError as error:
        raise _problem("spec.privacy.accountant", f"{error}: remove it to use RDP") from error
    except CalibrationError as error:
        raise _problem(
            "spec.privacy.targetEpsilon",
            f"{error}: raise it, or lower spec.training.steps or spec.training.expectedBatchSize",
        ) from error


def _grid_bits(batch: int, sigma: float) -> int:
    """k of S = 2^k: the finest grid on which B + 8√B clip norms and eight standard deviations of noise fit an int32."""
    widest = batch + 8 * math.sqrt(batch) + 8 * sigma
    bits = min(MAX_GRID_BITS, math.floor(math.log2(CARRIER_MAX / widest)))
    if bits < MIN_GRID_BITS:
        raise _problem(
            "spec.training.expectedBatchSize",
            f"a step's worst case of {widest:.0f} clip norms overflows the integer grid (2^{bits} grid steps in a clip "
            f"norm, 2^{MIN_GRID_BITS} are needed): lower it"
            + (", or lower spec.privacy.noiseMultiplier" if 8 * sigma > batch else ""),
        )
    return bits


def _completed(job: TenSafeTrainingJob, plan: Plan) -> TenSafeTrainingJob:
    """`job` with every computed default written into its spec."""
    spec = job.spec
    columns = spec.dataset.columns
    reads_text = not columns.given().keys() & set(image_columns())
    max_length = spec.training.max_length or (DEFAULT_MAX_LENGTH if reads_text else None)
    over_length = spec.dataset.over_length or ("Truncate" if reads_text else None)
    training = spec.training.model_copy(
        update={
            "steps": plan.steps,
            "epochs": None,
            "expected_batch_size": plan.mechanism.expected_batch_size,
            "max_length": max_length,
            "learning_rate": learning_rate(spec),
        }
    )
    privacy = spec.privacy.model_copy(
        update={
            "target_delta": plan.delta,
            "noise_multiplier": plan.mechanism.noise_multiplier,
            "accountant": plan.accountant,
            "reserve_steps": plan.reserve_steps,
        }
    )
    checkpoint = spec.checkpoint.model_copy(update={"every_steps": plan.checkpoint_every})
    lora = spec.lora.model_copy(update={"alpha": spec.lora.alpha or 2 * spec.lora.rank})
    unit = spec.dataset.unit
    if unit.kind == "User" and unit.max_examples_per_unit is None:
        unit = unit.model_copy(update={"max_examples_per_unit": DEFAULT_EXAMPLES_PER_UNIT})
    shape = shape_for(spec.model.task, columns.given())
    loss_on = spec.dataset.loss_on or (shape.loss_on if shape else None)
    update: dict[str, object] = {
        "training": training,
        "privacy": privacy,
        "checkpoint": checkpoint,
        "lora": lora,
        "dataset": spec.dataset.model_copy(update={"loss_on": loss_on, "over_length": over_length, "unit": unit}),
    }
    if spec.evaluation:
        update["evaluation"] = spec.evaluation.model_copy(update={"every_steps": plan.evaluate_every})
    return job.model_copy(update={"spec": spec.model_copy(update=update)})


def _problem(path: str, message: str) -> ManifestError:
    return ManifestError([Problem(path, message)])
