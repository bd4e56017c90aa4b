"""What to train and how, in the words of the Python API.

In: the fields of a guide that its readers know. Out: objects whose choices are checked as soon as they are made; `jobs`
then makes a `TenSafeTrainingJob` of them, and the manifest's own rules check the numbers. Every field has an effect, or
is refused in one sentence; none is accepted and ignored.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tensorguard.distributed._errors import ConfigurationError

ACCOUNTANTS = {"rdp": "RDP", "moments": "RDP", "prv": "PLD"}
"""The moments accountant is what RDP grew out of; PLD is dp-accounting's equivalent of PRV."""
PRECISIONS = {"no": "fp32", "fp32": "fp32", "bf16": "bf16", "fp16": "fp16"}
RESOURCES = ("CPU", "GPU")
ROLES = ("prompt", "completion", "messages", "tools", "text", "label", "user")


class _Fields:
    """Refuses a field that there is not, with the nearest name that there is."""

    def __new__(cls, *args: Any, **given: Any) -> Self:
        known = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
        for name in given:
            if name not in known:
                raise ConfigurationError(f"{cls.__name__} has no field {name}: {_nearest(name, known)}")
        return super().__new__(cls)


@dataclass(frozen=True, kw_only=True)
class DistributedDPConfig(_Fields):
    """What the training may tell of one unit (a record; or a user, see `TenSafeTrainingConfig.columns`).

    target_epsilon: the ε that is never passed; it has no default.
    target_delta: below 1 / unit_at_least; default 1 / (10 x unit_at_least).
    max_grad_norm: to which norm each unit's gradient is clipped.
    noise_multiplier: the noise's standard deviation over max_grad_norm; default: the least that keeps target_epsilon.
    accountant_type: rdp; moments, which means rdp; or prv, which means dp-accounting's PLD: tighter and slower.
    stop_on_budget_exceeded: what happens where the next step would pass target_epsilon. True: a last checkpoint, and
        `fit` returns. False: `fit` raises PrivacyBudgetExceeded.
    """

    target_epsilon: float
    target_delta: float | None = None
    max_grad_norm: float = 1.0
    noise_multiplier: float | None = None
    accountant_type: str = "rdp"
    stop_on_budget_exceeded: bool = True

    def __post_init__(self) -> None:
        one_of("dp_config.accountant_type", self.accountant_type, ACCOUNTANTS)
        truth("dp_config.stop_on_budget_exceeded", self.stop_on_budget_exceeded)


@dataclass(frozen=True, kw_only=True)
class SecureAggregationConfig(_Fields):
    """How the workers' sums are added without any of them being seen. One worker alone has nothing to mask.

    verify_aggregation: True: each sum is checked against errors of transit. False: it is not.
    """

    enabled: bool = True
    protocol: str = "pairwise_masking"
    key_exchange: str = "diffie_hellman"
    verify_aggregation: bool = True

    def __post_init__(self) -> None:
        truth("secure_aggregation.enabled", self.enabled)
        one_of("secure_aggregation.protocol", self.protocol, ("pairwise_masking",))
        one_of("secure_aggregation.key_exchange", self.key_exchange, ("diffie_hellman",))
        truth("secure_aggregation.verify_aggregation", self.verify_aggregation)


@dataclass(frozen=True, kw_only=True)
class TenSafeTrainingConfig(_Fields):
    """One training, whole. The mean number of units in a step is
    per_device_batch_size x gradient_accumulation_steps x num_workers; each joins by a draw of its own.

    model_name: a hub id, a path, or an installed package that holds a model. tokenizer_name: None, or model_name.
    lora_alpha: default 2 x lora_rank. lora_target_modules: names of layers, or "all-linear"; default: peft's.
    num_epochs: passes over unit_at_least units. per_device_batch_size: also how many records a worker holds at once.
    use_gpu, resources_per_worker: {"CPU": 2, "GPU": 1}, of each worker; default one CPU, and one GPU with use_gpu.
    mixed_precision: of the base weights: no or fp32, bf16, or fp16 (with a static loss scale of 1024, undone before
        clipping); what is trained is fp32 in all of them.
    checkpoint_frequency: in steps; default: a fiftieth of all. Evaluations keep its time.
    checkpoint_dir: a path, or s3:// or gs://.
    ray_timeout: seconds that workers may wait for each other; default 300.
    enable_audit_logging: each charge, checkpoint, evaluation and end is told to the logger `tensafe.audit`, as JSON.
    unit_at_least: a public lower bound of the number of units; default: len(train_dataset), which thereby is public.
    columns: role (prompt, completion, messages, tools, text, label, user) to column; default: the columns of these
        names. With `user` the unit of privacy is a user with all records.
    task: CausalLM or SequenceClassification; default: the latter where there is a label. num_labels: for the latter.
    output_dir: the run's folder (ledger, events, keys); default: `run` in a local checkpoint_dir, else
        tensafe-runs/ and the job's name.
    """

    model_name: str
    dp_config: DistributedDPConfig
    tokenizer_name: str | None = None
    lora_rank: int = 16
    lora_alpha: int | None = None
    lora_dropout: float = 0.05
    lora_target_modules: Sequence[str] | str | None = None
    num_epochs: float = 3
    per_device_batch_size: int = 8
    gradient_accumulation_steps: int = 8
    learning_rate: float = 2e-4
    weight_decay: float = 0.01
    warmup_ratio: float = 0.03
    max_seq_length: int = 512
    num_workers: int = 2
    use_gpu: bool = False
    resources_per_worker: Mapping[str, float] | None = None
    mixed_precision: str = "no"
    gradient_checkpointing: bool = False
    checkpoint_frequency: int | None = None
    checkpoint_dir: str | Path = "checkpoints"
    ray_timeout: float | None = None
    enable_audit_logging: bool = True
    secure_aggregation: SecureAggregationConfig = field(default_factory=SecureAggregationConfig)
    unit_at_least: int | None = None
    columns: Mapping[str, str] | None = None
    task: str | None = None
    num_labels: int | None = None
    output_dir: str | Path | None = None

    def __post_init__(self) -> None:
        for name in ("use_gpu", "gradient_checkpointing", "enable_audit_logging"):
            truth(name, getattr(self, name))
        if not isinstance(self.dp_config, DistributedDPConfig):
            raise ConfigurationError("dp_config must be a DistributedDPConfig")
        if not isinstance(self.secure_aggregation, SecureAggregationConfig):
            raise ConfigurationError("secure_aggregation must be a SecureAggregationConfig")
        if self.tokenizer_name not in (None, self.model_name):
            raise ConfigurationError(
                f"tokenizer_name is {self.tokenizer_name!r}, but a model is trained with its own tokenizer: "
                "leave it out, or save the tokenizer beside the model"
            )
        if self.num_workers != 1 and not self.secure_aggregation.enabled:
            raise ConfigurationError(
                "secure_aggregation.enabled is False, but several workers always mask what they send: "
                "set it to True, or num_workers to 1"
            )
        one_of("mixed_precision", self.mixed_precision, PRECISIONS)
        for role in self.columns or ():
            one_of("columns", role, ROLES)
        if self.ray_timeout is not None and not 1 <= number("ray_timeout", self.ray_timeout) < float("inf"):
            raise ConfigurationError(f"ray_timeout must be at least 1 second, not {self.ray_timeout}")
        self._check_resources()

    @property
    def cpus_per_worker(self) -> float:
        """CPU cores of each worker."""
        return number("resources_per_worker['CPU']", (self.resources_per_worker or {}).get("CPU", 1))

    @property
    def gpus_per_worker(self) -> int:
        """GPUs of each worker."""
        return whole("resources_per_worker['GPU']", (self.resources_per_worker or {}).get("GPU", int(self.use_gpu)))

    def _check_resources(self) -> None:
        for kind in self.resources_per_worker or ():
            one_of("resources_per_worker", kind, RESOURCES)
        gpus = self.gpus_per_worker
        if gpus and not self.use_gpu:
            raise ConfigurationError(
                f"resources_per_worker asks for {gpus} GPUs, but use_gpu is False: set it to True, or leave GPU out"
            )
        if self.use_gpu and not gpus:
            raise ConfigurationError(
                "use_gpu is True, but resources_per_worker['GPU'] is 0: set it to 1, or use_gpu to False"
            )


def one_of(name: str, value: object, choices: Iterable[str]) -> None:
    """Refuse a `value` that is none of `choices`, with the nearest one."""
    known = list(choices)
    if value not in known:
        raise ConfigurationError(f"{name} does not know {value!r}: {_nearest(str(value), known)}")


def truth(name: str, value: object) -> bool:
    """`value`, where it is True or False."""
    if not isinstance(value, bool):
        raise ConfigurationError(f"{name} must be True or False, not {value!r}")
    return value


def whole(name: str, value: Any) -> int:
    """`value` as an int, where it is a whole number of any type, such as numpy's."""
    try:
        fits = not isinstance(value, bool | str) and int(value) == value
    except (TypeError, ValueError, OverflowError):
        fits = False
    if not fits:
        raise ConfigurationError(f"{name} must be a whole number, not {value!r}")
    return int(value)


def number(name: str, value: Any) -> float:
    """`value` as a float, where it is a number of any type, such as numpy's. It may still be infinite or NaN."""
    if isinstance(value, bool | str):
        raise ConfigurationError(f"{name} must be a number, not {value!r}")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise ConfigurationError(f"{name} must be a number, not {value!r}") from None


def _nearest(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name.lower(), {word.lower(): word for word in known}, n=1, cutoff=0.6)
    if near:
        return f"did you mean {next(word for word in known if word.lower() == near[0])}?"
    return f"there is {', '.join(known)}"
