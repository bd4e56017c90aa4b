"""How a job trains: optimiser, privacy, aggregation, checkpoints and their storage.

A manifest may omit most of these fields. `tensafe_api.resolve` computes the omitted ones from the others, as each
description states, and the trainer runs with the result. Values with a privacy meaning are decimal strings.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from tensafe_api.resources.base import Block, Rule
from tensafe_api.resources.numeric import (
    Count,
    Delta,
    Epsilon,
    Flag,
    Fraction,
    GradNorm,
    LearningRate,
    LossScale,
    NoiseMultiplier,
    Positive,
    PositiveDecimal,
    WeightDecay,
)
from tensafe_api.resources.strings import Endpoint, ObjectName, OneLine, Recipient, StoreURI
from tensafe_api.tasks import learning_rates

Precision = Literal["fp32", "bf16", "fp16"]
Accountant = Literal["RDP", "PLD"]
DEFAULT_MAX_LENGTH = 512
"""The default of `Training.max_length` for text, in tokens."""


class Training(Block):
    """Length of the training, batch size and optimiser. Each step draws a new batch: every unit joins independently."""

    epochs: PositiveDecimal | None = Field(
        None,
        description="Length in passes over unit.atLeast units: steps = epochs x unit.atLeast / "
        'expectedBatchSize. Default, without steps: "3".',
    )
    steps: Positive | None = Field(
        None,
        description="Length in optimiser steps. At most one of epochs and steps may be set. Default: "
        "computed from epochs; without both 100 where only the classifier is trained (lora.layers: []).",
    )
    expected_batch_size: Positive | None = Field(
        None,
        description="Mean number of units in a step. Each joins with probability expectedBatchSize / "
        "unit.atLeast. Default: the smaller of 512 and unit.atLeast / 20; up to 100,000 where only the classifier "
        "is trained (lora.layers: []).",
    )
    micro_batch_size: Annotated[int, Field(strict=True, ge=1, le=4096)] = Field(
        8,
        description="Maximum number of records that a worker processes at a time: for memory and speed only. Fewer "
        "where kernels would round differently for so many.",
    )
    learning_rate: LearningRate | None = Field(
        None,
        description=f"Peak learning rate of AdamW: higher than without privacy. Default: {learning_rates()}.",
    )
    schedule: Literal["Linear", "Cosine", "Constant"] = Field(
        "Linear", description="Learning rate after the warm-up. Linear and Cosine: decay to 0. Constant: no decay."
    )
    weight_decay: WeightDecay = Field("0.01", description="Weight decay of AdamW.")
    warmup_ratio: Fraction = Field(
        "0.03", description="Fraction of the steps in which the learning rate rises from 0 to learningRate."
    )
    max_length: Annotated[int, Field(strict=True, ge=1, le=1_048_576)] | None = Field(
        None,
        description="Maximum number of tokens of a record; dataset.overLength is about longer ones. Refused for "
        "images. Default for text: 512.",
    )
    precision: Precision | None = Field(
        None,
        description="Number format of the forward and backward pass. Default: bf16 on a GPU that supports it, "
        "otherwise fp32.",
    )
    loss_scale: LossScale | None = Field(
        None,
        description="Factor of the loss that keeps fp16 gradients from underflowing, divided out before clipping. "
        "Required with precision fp16, else refused. A power of two such as 1024, at most 16777216.",
    )
    gradient_checkpointing: Flag = Field(
        False, description="Recompute activations in the backward pass: less memory, more time."
    )
    frozen_prefix: Literal["Auto", "Off"] | None = Field(
        None,
        description="Auto: where the lower layers are frozen (lora.layers), a worker computes them once for each of "
        "its records, and keeps the result on its disk, if this saves time and half of the free disk is enough. No bit "
        "of a gradient changes. Off: every step computes all layers. Default: Auto.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!(has(self.epochs) && has(self.steps))",
            "training must have at most one of epochs and steps: remove one of them",
            lambda training: training.epochs is None or training.steps is None,
            id="EpochsOrSteps",
        ),
        Rule(
            "(has(self.precision) && self.precision == 'fp16') == has(self.lossScale)",
            'training.lossScale is required with precision fp16 and refused otherwise: write it, such as "1024", or '
            "remove it",
            lambda training: (training.precision == "fp16") == (training.loss_scale is not None),
            ".lossScale",
            id="LossScaleOfFp16",
        ),
    )


class Privacy(Block):
    """The privacy budget, the noise and the accounting. Neighbouring data sets differ by one unit, added or removed."""

    target_epsilon: Epsilon = Field(description="Epsilon that the training must not exceed.")
    target_delta: Delta | None = Field(
        None,
        description="Delta of the privacy claim, at least 1e-300 and below 1 / unit.atLeast. Default: 1 / (10 x "
        "unit.atLeast).",
    )
    max_grad_norm: GradNorm = Field(
        "1.0", description="L2 norm to which the gradient of each unit is clipped, from 1e-6 to 1e6."
    )
    noise_multiplier: NoiseMultiplier | None = Field(
        None,
        description="Standard deviation of the noise divided by maxGradNorm. Default: the smallest that keeps "
        "targetEpsilon over planned and reserved steps.",
    )
    accountant: Accountant | None = Field(
        None,
        description="Computes epsilon from the steps. PLD: privacy loss distributions, with less noise for the same "
        "epsilon. RDP: Renyi differential privacy. Default: PLD up to 20,000 steps and a "
        "targetEpsilon of 20, from a noiseMultiplier of 0.3 and a targetDelta of 1e-8; RDP beyond.",
    )
    on_budget_exhausted: Literal["Stop", "Fail"] = Field(
        "Stop",
        description="What happens before steps would exceed targetEpsilon. Stop: the job writes a final checkpoint and "
        "ends as BudgetExhausted. Fail: it ends as Failed.",
    )
    reserve_steps: Count | None = Field(
        None,
        description="Steps beyond the planned ones for which the default noise leaves budget, since steps are charged "
        "again after a crash. Default: the smaller of retry.maxAttempts x "
        "(checkpoint.everySteps + steps / 100) and steps / 10.",
    )


class Aggregation(Block):
    """Secure aggregation: the workers' sums are added without revealing any of them. Masking is always on."""

    verify: Literal["Disabled", "Standard", "Strict"] = Field(
        "Standard",
        description="Check of each sum against transmission errors. Disabled: none. Standard: 1 challenge. Strict: 16.",
    )


class Signing(Block):
    """How checkpoints are signed."""

    secret_name: ObjectName = Field(description="Secret whose signing-key.pem is a private key or a PKCS #11 URI.")


class Encryption(Block):
    """For whom checkpoints are encrypted with age."""

    recipients: Annotated[tuple[Recipient, ...], Field(max_length=32)] = Field(
        (), description="Public keys of those who can decrypt: age1..., ssh-ed25519 or ssh-rsa."
    )
    recipients_config_map: ObjectName | None = Field(
        None, description="ConfigMap whose key recipients has them, one per line."
    )
    identity_secret_name: ObjectName | None = Field(
        None,
        description="Secret whose key identity decrypts. Without it, no attempt resumes from a checkpoint.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "(has(self.recipients) && self.recipients.size() > 0) != has(self.recipientsConfigMap)",
            "checkpoint.encryption must have recipients or recipientsConfigMap: write one of them",
            lambda encryption: bool(encryption.recipients) != (encryption.recipients_config_map is not None),
            id="OneRecipientsSource",
        ),
    )


class Checkpoint(Block):
    """Where and how often checkpoints are written."""

    uri: StoreURI = Field(
        description="Directory of the checkpoints: an s3://, gs://, file:// or pvc://NAME/path URI, or a path. "
        "It must not hold data. Each has the adapter and the privacy statement."
    )
    every_steps: Positive | None = Field(
        None,
        description="Number of steps between checkpoints. The last step always writes one. Default: steps / 50.",
    )
    keep: Annotated[int, Field(strict=True, ge=1, le=100)] = Field(
        3, description="Number of checkpoints to keep besides the final one. Older ones are deleted."
    )
    signing: Signing | None = Field(None, description="Sign checkpoints, and resume only from those signed.")
    encryption: Encryption | None = Field(
        None, description="Encrypt weights and optimiser state. Default: not encrypted."
    )


class Storage(Block):
    """Access to object storage. By default the environment decides, for example through workload identity."""

    endpoint: Endpoint | None = Field(
        None, description="URL of an S3-compatible service. Default: the public service of the URI's scheme."
    )
    region: OneLine | None = Field(None, description="Region of the storage. Default: the one set in the environment.")
    secret_name: ObjectName | None = Field(
        None,
        description="Secret whose keys become environment variables of the workers: the credentials of the "
        "storage. Default: none.",
    )
