"""How it is learned: optimisation, privacy, aggregation, checkpoints and their storage.

In comes the manifest; `tensafe_api.resolve` computes what is left out from the rest (each description names the rule),
and the trainer's engine runs what comes out. Values with a privacy meaning are decimal strings.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from tensafe_api.resources.base import Block, Rule
from tensafe_api.resources.values import (
    Count,
    Delta,
    Endpoint,
    Epsilon,
    Flag,
    Fraction,
    GradNorm,
    LearningRate,
    LossScale,
    ObjectName,
    OneLine,
    Positive,
    PositiveDecimal,
    StoreURI,
    WeightDecay,
)

Precision = Literal["fp32", "bf16", "fp16"]
Accountant = Literal["RDP", "PLD"]


class Training(Block):
    """The optimiser's work. A batch is drawn anew for each step: every unit joins independently."""

    epochs: PositiveDecimal | None = Field(
        None,
        description="Length of the training in passes over unit.atLeast units; steps = epochs x atLeast / "
        'expectedBatchSize. At most one of epochs and steps; default, where neither is given: "3".',
    )
    steps: Positive | None = Field(
        None, description="Length of the training in steps of the optimiser. At most one of epochs and steps."
    )
    expected_batch_size: Positive | None = Field(
        None,
        description="Mean number of units in a step; each joins with probability expectedBatchSize / unit.atLeast; "
        "default: the smaller of 512 and unit.atLeast / 20.",
    )
    micro_batch_size: Annotated[int, Field(strict=True, ge=1, le=4096)] = Field(
        8, description="Records that a worker works on at once: a matter of memory, without effect on the result."
    )
    learning_rate: LearningRate = Field("2e-4", description="Highest learning rate of AdamW.")
    schedule: Literal["Linear", "Cosine", "Constant"] = Field(
        "Linear", description="How the learning rate goes on after the warm-up: down to 0, or constant."
    )
    weight_decay: WeightDecay = Field("0.01", description="Weight decay of AdamW.")
    warmup_ratio: Fraction = Field("0.03", description="Share of the steps over which the learning rate rises from 0.")
    max_length: Annotated[int, Field(strict=True, ge=1, le=1_048_576)] = Field(
        512, description="Most tokens of a record; dataset.overLength says what happens to longer ones."
    )
    precision: Precision | None = Field(
        None, description="Number format of the model's computations; default: bf16 on a GPU that has it, else fp32."
    )
    loss_scale: LossScale | None = Field(
        None,
        description="Constant factor of the loss, which keeps small fp16 gradients from vanishing; undone before "
        "clipping. For fp16 only, and required there; a power of two such as 1024, at most 16777216.",
    )
    gradient_checkpointing: Flag = Field(
        False, description="Compute activations twice to hold fewer of them: less memory, more time."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!(has(self.epochs) && has(self.steps))",
            "training takes one of epochs and steps, not both: leave one of them out",
            lambda training: training.epochs is None or training.steps is None,
        ),
        Rule(
            "(has(self.precision) && self.precision == 'fp16') == has(self.lossScale)",
            'training.lossScale belongs to fp16: write it there, for example "1024", and leave it out otherwise',
            lambda training: (training.precision == "fp16") == (training.loss_scale is not None),
            ".lossScale",
        ),
    )


class Privacy(Block):
    """What the training may tell of one unit, and how that is counted. Adjacency: one unit added or removed."""

    target_epsilon: Epsilon = Field(description="The epsilon that training must not exceed.")
    target_delta: Delta | None = Field(
        None,
        description="The delta of the claim, at least 1e-300 and below 1 / unit.atLeast; default: "
        "1 / (10 x unit.atLeast).",
    )
    max_grad_norm: GradNorm = Field(
        "1.0", description="Norm to which the gradient of each unit is clipped, from 1e-6 to 1e6."
    )
    noise_multiplier: PositiveDecimal | None = Field(
        None,
        description="Standard deviation of the noise in units of maxGradNorm; default: the smallest that keeps "
        "targetEpsilon over the planned and the reserved steps.",
    )
    accountant: Accountant = Field(
        "RDP", description="How steps add up to epsilon: Renyi differential privacy, or the tighter, slower PLD."
    )
    on_budget_exhausted: Literal["Stop", "Fail"] = Field(
        "Stop",
        description="What happens when the next steps would exceed targetEpsilon. Stop: a last checkpoint, and the "
        "phase BudgetExhausted. Fail: the phase Failed.",
    )
    reserve_steps: Count | None = Field(
        None,
        description="Steps that the noise allows for beyond the planned ones, because steps run again after a crash "
        "are charged again; default: the smaller of maxAttempts x (checkpoint.everySteps + one charge) and steps / 10.",
    )


class Aggregation(Block):
    """How the workers' sums are added without any worker's sum being seen. Masking is always on."""

    colluding_workers: Annotated[int, Field(strict=True, ge=0, le=15)] = Field(
        0,
        description="How many workers may pool what they see before the claim fails; each worker then adds more noise. "
        "It means something only where workers cannot read each other's data.",
    )
    verify: Literal["Disabled", "Standard", "Strict"] = Field(
        "Standard",
        description="Check of the sum against errors of transit: none, one challenge, or 16 challenges.",
    )


class Checkpoint(Block):
    """Where the adapter goes."""

    uri: StoreURI = Field(
        description="Directory of the checkpoints, as s3://, gs://, file://, pvc://claim/path or a path; not one of "
        "data. Each holds the adapter, the optimiser's "
        "state and the privacy statement."
    )
    every_steps: Positive | None = Field(
        None,
        description="Steps from one checkpoint to the next; default: a fiftieth of the steps. The last step always is.",
    )
    keep: Annotated[int, Field(strict=True, ge=1, le=100)] = Field(
        3, description="How many checkpoints are kept beside the final one; older ones are deleted."
    )


class Storage(Block):
    """How object storage is reached; by default as the environment says (workload identity)."""

    endpoint: Endpoint | None = Field(
        None, description="Address of an S3-compatible service; default: the scheme's public one."
    )
    region: OneLine | None = Field(None, description="Region of the storage; default: what the environment says.")
    secret_name: ObjectName | None = Field(
        None,
        description="Secret with the storage's credentials as environment variables, for workers only; default: none.",
    )
