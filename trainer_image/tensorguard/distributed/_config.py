"""The configuration of the Python API.

Choices and types are checked when an object is created. `_manifests` then makes a `TenSafeTrainingJob` of the
configuration, and the manifest's own rules check the numbers. Every field has an effect or is refused with one
sentence; no field is accepted and ignored.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tensafe_api.tasks import COLUMNS
from tensorguard.distributed._errors import ConfigurationError

ACCOUNTANTS = {"rdp": "RDP", "moments": "RDP", "prv": "PLD"}
"""RDP generalises the moments accountant. PLD is dp-accounting's equivalent of PRV."""
PRECISIONS = {"no": "fp32", "fp32": "fp32", "bf16": "bf16", "fp16": "fp16"}
HIDDEN, INTERNAL = "Hidden", "Internal"
RESOURCES = ("CPU", "GPU")
ROLES = (*COLUMNS, "user")


class _Fields:
    """Refuses an unknown field, and names the nearest known one."""

    def __new__(cls, *args: Any, **given: Any) -> Self:
        known = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
        for name in given:
            if name not in known:
                raise ConfigurationError(f"{cls.__name__}: has no field {name}: {_nearest(name, known)}")
        return super().__new__(cls)


@dataclass(frozen=True, kw_only=True)
class DistributedDPConfig(_Fields):
    """The privacy budget and the mechanism that keeps it.

    The budget protects one unit: a record, or a user (see `TenSafeTrainingConfig.columns`).

    Attributes:
        target_epsilon: the ε that training never passes. It has no default.
        target_delta: below 1 / unit_at_least; default 1 / (10 x unit_at_least).
        max_grad_norm: the norm to which each unit's gradient is clipped.
        noise_multiplier: the standard deviation of the noise divided by max_grad_norm; default: the smallest that keeps
            target_epsilon.
        accountant_type: prv, which is dp-accounting's PLD; rdp, which needs more noise for the same ε; or moments,
            which is rdp. Default: prv up to 20,000 steps and a target_epsilon of 20, from a noise_multiplier of 0.3 and
            a target_delta of 1e-8; rdp beyond.
        stop_on_budget_exceeded: what happens if the next step would pass target_epsilon. True: a last checkpoint is
            saved, and `fit` returns. False: `fit` raises PrivacyBudgetExceeded.
    """

    target_epsilon: float = None  # type: ignore[assignment]  # refused below, with the fix
    target_delta: float | None = None
    max_grad_norm: float = 1.0
    noise_multiplier: float | None = None
    accountant_type: str | None = None
    stop_on_budget_exceeded: bool = True

    def __post_init__(self) -> None:
        if self.target_epsilon is None:
            raise ConfigurationError(
                "dp_config.target_epsilon: missing, and it has no default because the budget is your decision: "
                "write one, such as DistributedDPConfig(target_epsilon=8.0)"
            )
        if self.accountant_type is not None:
            require_choice("dp_config.accountant_type", self.accountant_type, ACCOUNTANTS)
        require_bool("dp_config.stop_on_budget_exceeded", self.stop_on_budget_exceeded)


@dataclass(frozen=True, kw_only=True)
class SecureAggregationConfig(_Fields):
    """Secure aggregation: the workers' sums are added up, and no single sum is revealed.

    With one worker there is nothing to mask.

    Attributes:
        enabled: must be True with several workers.
        protocol: pairwise_masking.
        key_exchange: diffie_hellman.
        verify_aggregation: whether each sum is checked for transmission errors.
    """

    enabled: bool = True
    protocol: str = "pairwise_masking"
    key_exchange: str = "diffie_hellman"
    verify_aggregation: bool = True

    def __post_init__(self) -> None:
        require_bool("secure_aggregation.enabled", self.enabled)
        require_choice("secure_aggregation.protocol", self.protocol, ("pairwise_masking",))
        require_choice("secure_aggregation.key_exchange", self.key_exchange, ("diffie_hellman",))
        require_bool("secure_aggregation.verify_aggregation", self.verify_aggregation)


@dataclass(frozen=True, kw_only=True)
class TenSafeTrainingConfig(_Fields):
    """All settings of one training.

    A step takes per_device_batch_size x gradient_accumulation_steps x num_workers units on average: each unit joins a
    step independently of all others.

    Attributes:
        model_name: a hub id, a path, or an installed package that holds a model.
        dp_config: the privacy budget and mechanism.
        tokenizer_name: None, or model_name.
        lora_rank, lora_dropout: of the LoRA adapter.
        lora_alpha: default 2 x lora_rank.
        lora_target_modules: names of layers, or "all-linear"; default: peft's choice for the model.
        target_modules: another name of lora_target_modules, as peft has it.
        train_head_only: train the classifier alone, in steps on all unit_at_least units. A text is then classified by
            the mean of its tokens. It takes seconds once the model has read the data.
        num_epochs: passes over unit_at_least units; default 3, and 100 with train_head_only.
        per_device_batch_size: records that a worker processes at once; also a factor of the batch, as above.
        gradient_accumulation_steps: the second factor of the batch; default 8. Refused with train_head_only.
        learning_rate: the peak of AdamW; default: by task, 2e-2 for classification and 5e-3 for CausalLM.
        weight_decay, warmup_ratio: of AdamW and its schedule.
        max_seq_length: in tokens; longer records are cut. Default for text: 512. Refused for images.
        num_workers: worker processes, one shard of the data each.
        use_gpu: whether each worker has a GPU; default: whether resources_per_worker has one.
        resources_per_worker: of each worker, such as {"CPU": 2, "GPU": 1}; default one CPU, and one GPU with use_gpu.
        mixed_precision: of the base weights: no or fp32, bf16, or fp16 (with a static loss scale of 1024, undone before
            clipping). The trained weights are fp32 in every case.
        gradient_checkpointing: recompute activations in the backward pass, to save memory.
        checkpoint_frequency: in steps; default: a fiftieth of all steps. Evaluations run at the same steps.
        checkpoint_dir: a path, s3:// or gs://.
        signing_key: file of the private key that signs the checkpoints, or another value of `--signing-key`; default:
            what TENSAFE_SIGNING_KEY names, else they are not signed. A resume accepts only checkpoints that this key
            has signed.
        encryption_recipients: age recipients (age1...) to which checkpoints are encrypted; default: none.
        identity: file of the age identity that decrypts the checkpoint to resume from; default: what TENSAFE_IDENTITY
            names.
        ray_timeout: seconds that workers may wait for each other; default 300.
        enable_audit_logging: write each charge, checkpoint, evaluation, refusal and end to audit.jsonl in the run's
            folder, in a chain of hashes, and to the logger `tensafe.audit`.
        private_metrics: Hidden, or Internal: the training loss, norms and batch sizes are written to files of the run's
            private folder, and passed to callbacks whose `on_step` has a parameter `private_metrics`.
        secure_aggregation: how the workers' sums are added up; None: SecureAggregationConfig().
        unit_at_least: a public lower bound of the number of units; default: len(train_dataset), which becomes public.
        unit_missing: what becomes of a record without the id of a user. Refuse: `fit` raises before anything is spent.
            OwnUnit: the record is a unit by itself. Default with `user`: Refuse.
        unusable: what becomes of a record that cannot be used. Refuse: `fit` raises before anything is spent. Skip: it
            is left out.
        null_values: texts that mean no value in csv and tsv files, such as NULL.
        columns: role (prompt, completion, messages, tools, text, label, tokens, tags, user) to column, or to the
            position in a tuple; default: the columns with the names of a shape of data. tools and user are used only
            if they are named here. With `user`, the unit of privacy is all records of one user.
        task: a model task of the manifest, such as CausalLM; default: SequenceClassification if there is a label,
            TokenClassification if there are tags, else CausalLM.
        num_labels: number of classes, for tasks with labels.
        label_names: the names of the classes in the order of their numbers; default: none.
        output_dir: the run's folder (ledger, log records); default: `run` in a local checkpoint_dir, else
            tensafe-runs/ and the job's name. Key and tracebacks are beside it, in a folder that ends in .private.
    """

    model_name: str
    dp_config: DistributedDPConfig = None  # type: ignore[assignment]  # refused below, with the fix
    tokenizer_name: str | None = None
    lora_rank: int = 16
    lora_alpha: int | None = None
    lora_dropout: float = 0.05
    lora_target_modules: Sequence[str] | str | None = None
    target_modules: Sequence[str] | str | None = None
    train_head_only: bool = False
    num_epochs: float | None = None
    per_device_batch_size: int = 8
    gradient_accumulation_steps: int | None = None
    learning_rate: float | None = None
    weight_decay: float = 0.01
    warmup_ratio: float = 0.03
    max_seq_length: int | None = None
    num_workers: int = 2
    use_gpu: bool | None = None
    resources_per_worker: Mapping[str, float] | None = None
    mixed_precision: str = "no"
    gradient_checkpointing: bool = False
    checkpoint_frequency: int | None = None
    checkpoint_dir: str | Path = "checkpoints"
    signing_key: str | Path | None = None
    encryption_recipients: Sequence[str] = ()
    identity: str | Path | None = None
    ray_timeout: float | None = None
    enable_audit_logging: bool = True
    private_metrics: str = "Hidden"
    secure_aggregation: SecureAggregationConfig | None = None
    unit_at_least: int | None = None
    unit_missing: str | None = None
    unusable: str = "Refuse"
    null_values: Sequence[str] = ()
    columns: Mapping[str, str | int] | None = None
    task: str | None = None
    num_labels: int | None = None
    label_names: Sequence[str] = ()
    output_dir: str | Path | None = None

    def __post_init__(self) -> None:
        self._check_model()
        self._check_privacy()
        self._check_choices()
        self._check_workers()
        self._check_resources()

    @property
    def aggregation(self) -> SecureAggregationConfig:
        """How the workers' sums are added up, also where `secure_aggregation` is None."""
        return self.secure_aggregation or SecureAggregationConfig()

    @property
    def cpus_per_worker(self) -> float:
        """CPU cores of each worker."""
        return require_float("resources_per_worker['CPU']", (self.resources_per_worker or {}).get("CPU", 1))

    @property
    def gpus_per_worker(self) -> int:
        """GPUs of each worker."""
        return require_int(
            "resources_per_worker['GPU']", (self.resources_per_worker or {}).get("GPU", int(bool(self.use_gpu)))
        )

    def _check_model(self) -> None:
        if not isinstance(self.model_name, str | Path) or not str(self.model_name):
            raise ConfigurationError(
                f"model_name: must be a hub id, a path, or an installed package with a model, not {self.model_name!r}"
            )
        if self.tokenizer_name not in (None, self.model_name):
            raise ConfigurationError(
                f"tokenizer_name: a model is trained with its own tokenizer, not with {self.tokenizer_name!r}: leave "
                "it out, or save that tokenizer in the model's folder"
            )
        if self.train_head_only and self.gradient_accumulation_steps is not None:
            raise ConfigurationError(
                "gradient_accumulation_steps: with train_head_only each step takes all units: leave it out"
            )
        if self.lora_target_modules is not None and self.target_modules is not None:
            raise ConfigurationError(
                "target_modules: it is another name of lora_target_modules, and both are set: leave one out"
            )

    def _check_privacy(self) -> None:
        if self.dp_config is None:
            raise ConfigurationError(
                "dp_config: missing, and every training is differentially private: write "
                "dp_config=DistributedDPConfig(target_epsilon=8.0), or train without privacy by peft and transformers"
            )
        if not isinstance(self.dp_config, DistributedDPConfig):
            raise ConfigurationError(f"dp_config: must be a DistributedDPConfig, not {type(self.dp_config).__name__}")

    def _check_choices(self) -> None:
        """Check the fields that have a few values, or a list of them."""
        for name in ("gradient_checkpointing", "enable_audit_logging", "train_head_only"):
            require_bool(name, getattr(self, name))
        require_choice("mixed_precision", self.mixed_precision, PRECISIONS)
        require_choice("private_metrics", self.private_metrics, (HIDDEN, INTERNAL))
        if isinstance(self.encryption_recipients, str):
            raise ConfigurationError("encryption_recipients: must be a list of recipients, not one str")
        for role in self.columns or ():
            require_choice("columns", role, ROLES)

    def _check_workers(self) -> None:
        """Check how workers are joined."""
        if not isinstance(self.secure_aggregation, SecureAggregationConfig | None):
            raise ConfigurationError(
                f"secure_aggregation: must be a SecureAggregationConfig, not {type(self.secure_aggregation).__name__}"
            )
        if self.num_workers != 1 and not self.aggregation.enabled:
            raise ConfigurationError(
                "secure_aggregation.enabled: several workers always mask what they send, so it cannot be False: set it "
                "to True, or num_workers to 1"
            )
        if self.ray_timeout is not None and not 1 <= require_float("ray_timeout", self.ray_timeout) < float("inf"):
            raise ConfigurationError(f"ray_timeout: must be at least 1 second, not {self.ray_timeout}")

    def _check_resources(self) -> None:
        if self.use_gpu is not None:
            require_bool("use_gpu", self.use_gpu)
        for kind in self.resources_per_worker or ():
            require_choice("resources_per_worker", kind, RESOURCES)
        gpus = self.gpus_per_worker
        if gpus and self.use_gpu is False:
            raise ConfigurationError(
                f"resources_per_worker: it requests {gpus} GPUs, but use_gpu is False: leave one of them out"
            )
        if self.use_gpu and not gpus:
            raise ConfigurationError(
                "resources_per_worker['GPU']: it is 0, but use_gpu is True: set it to 1, or use_gpu to False"
            )


def require_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Refuse a `value` that is not one of `choices`, and name the nearest one."""
    known = list(choices)
    if value not in known:
        raise ConfigurationError(f"{name}: {value!r} is not known: {_nearest(str(value), known)}")


def require_bool(name: str, value: object) -> bool:
    """Return `value` if it is True or False, and refuse it otherwise."""
    if not isinstance(value, bool):
        raise ConfigurationError(f"{name}: must be True or False, not {value!r}")
    return value


def require_int(name: str, value: Any) -> int:
    """Return `value` as an int if it is a whole number of any type, such as numpy's, and refuse it otherwise."""
    try:
        fits = not isinstance(value, bool | str) and int(value) == value
    except (TypeError, ValueError, OverflowError):
        fits = False
    if not fits:
        raise ConfigurationError(f"{name}: must be a whole number, not {value!r}")
    return int(value)


def require_float(name: str, value: Any) -> float:
    """Return `value` as a float if it is a number of any type, such as numpy's. It may be infinite or NaN."""
    if isinstance(value, bool | str):
        raise ConfigurationError(f"{name}: must be a number, not {value!r}")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise ConfigurationError(f"{name}: must be a number, not {value!r}") from None


def _nearest(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name.lower(), {word.lower(): word for word in known}, n=1, cutoff=0.6)
    if near:
        return f"did you mean {next(word for word in known if word.lower() == near[0])}?"
    return f"known are {', '.join(known)}"
