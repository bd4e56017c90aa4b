"""What a model task is: everything that differs between writing text, classifying it, and any other use of a model.

In: the contract's entry (`tensafe_api.tasks`) and, for tasks with classes, their number and names. Out: how one record
becomes tokens and a target (`data` calls it), which transformers class is loaded and which of its modules are trained
whole (`load`, `lora`), the loss of each record (`losses`), and the metrics of an evaluation (`training.evaluation`).

Two rules hold for every task, and both are about privacy. What becomes of a record depends on that record alone: its
tokens, its target and its loss. Metrics are counts that are added up over batches and workers, so that every worker
reports the same figure; they are published only where `evaluation.visibility` is Public.

The modules of this package import torch inside the functions that need it: the processes that tokenise do without.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tensafe_api.tasks import TASKS, TaskContract
from tensorguard.data.recipe import Recipe
from tensorguard.data.shard import IGNORE_INDEX, TEXT, Input, Target
from tensorguard.data.tokenise import Encode, Tokeniser

if TYPE_CHECKING:
    import torch
    from peft import PeftModel
    from transformers import PreTrainedModel

    from tensafe_api.resources.model import Model
    from tensorguard.data.rows import Rows
    from tensorguard.models.source import ModelSource


@dataclass(frozen=True)
class Task(ABC):
    """One model task. A subclass sets the class variables and implements the abstract methods.

    Attributes:
        labels: number of classes; 0 for a task without classes.
        label_names: their names in the order of their numbers; may be empty.
        auto_class: the transformers class that loads the model, such as AutoModelForCausalLM.
        peft_type: peft's name for the task (`peft.TaskType`); None where peft has none.
        processor_class: the transformers class that prepares a model's inputs.
        target: what a record's target is, and how a shard stores it.
        heads: how the names of the model's output modules end that are trained whole and saved with the adapter. A
            checkpoint may lack their weights: they then start from `lora.initSeed`.
    """

    labels: int = 0
    label_names: tuple[str, ...] = ()

    auto_class: ClassVar[str]
    peft_type: ClassVar[str | None]
    target: ClassVar[Target]
    heads: ClassVar[tuple[str, ...]] = ()
    processor_class: ClassVar[str] = "AutoTokenizer"

    @property
    def contract(self) -> TaskContract:
        """The contract's part: its name, columns and metrics."""
        return TASKS[type(self).__name__]

    @property
    def name(self) -> str:
        """The value of `model.task`."""
        return self.contract.name

    def of_head(self) -> Task:
        """The task where nothing but the head is trained, so that the head may as well read something else."""
        return self

    def prepare(self, model: PreTrainedModel) -> None:  # noqa: B027  # most tasks change nothing
        """Change the loaded model, before its adapter is attached."""

    def load_processor(self, source: ModelSource, model: Model) -> Any:
        """What the model's files say about its inputs: its tokenizer. The weights are not read."""
        from tensorguard.models.tokenizer import load_tokenizer

        return load_tokenizer(source, chat_template=model.chat_template, trust_remote_code=model.trust_remote_code)

    def pad_id(self, processor: Any) -> int | None:
        """The token that fills rows, from the result of `load_processor`; None for inputs without tokens."""
        number: int = processor.pad_token_id
        return number

    def inputs(self, processor: Any) -> Input:
        """What the model reads of a record."""
        return TEXT

    def rows(self, processor: Any, recipe: Recipe, model: PeftModel) -> Rows:
        """What makes the rows of micro-batches for `model`."""
        from tensorguard.data.rows import TokenRows

        return TokenRows(recipe.max_length, processor.pad_token_id, model.config.get_text_config().vocab_size)

    def tokeniser(self, processor: Any, recipe: Recipe) -> Tokeniser:
        """A function from a batch of converted columns to one `Example` for each record (`Encode`); it can be pickled.

        Raises DataError where the tokenizer or the names of the classes do not fit the job. Only public examples are
        tried for this.
        """
        _ = recipe.classes
        return Tokeniser(self.encoder(processor, recipe), self.target, self.inputs(processor))

    @abstractmethod
    def encoder(self, processor: Any, recipe: Recipe) -> Encode:
        """The function of `tokeniser`, for the result of `load_processor`.

        It takes columns by role, equally long, as `data.raw_table` converts them, and returns one `Example` for each
        record, why a record cannot be used, or None for one that is longer than maxLength and to be left out. An
        example depends on its own record alone, and no record makes it raise. The target of an
        example is of the kind `target`. The function must be picklable: an object of a module-level class.
        """

    @abstractmethod
    def losses(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """One loss for each record, fp32 [m], from the model's logits [m, ...] and the labels int64 [m] or [m, L].

        Row i may depend on row i of both alone, never on the other rows or on their number: otherwise the gradient of
        one record depends on another, and the privacy claim is wrong. Labels of -100 are not learned. A row with no
        other labels (a dummy row) has a loss of exactly 0 and a gradient of exactly 0.
        """

    def learns(self, labels: torch.Tensor) -> torch.Tensor:
        """Which records have something to predict: bool [m]. The others do not count in an evaluation."""
        return (labels != IGNORE_INDEX).reshape(len(labels), -1).any(dim=1)

    def counts(self, logits: torch.Tensor, labels: torch.Tensor) -> tuple[int, ...]:
        """Whole numbers from which `metrics` is computed, for one batch. They are added up over batches and workers."""
        return ()

    def metrics(self, counts: Sequence[int], records: int) -> Mapping[str, float]:
        """The metrics of an evaluation by name (`tensafe_api.tasks`), from the sums of `counts` over all `records`."""
        return {}

    def example_lines(self) -> Sequence[str]:
        """Python that tries the trained `model`; `loading_lines` ends with it.

        `base` is the base model. `tokenizer` is its tokenizer, or `processor` what `processor_class` loads otherwise.
        """
        return ()

    def loading_lines(self, base: str, adapter: str, label_names: Sequence[str] = ()) -> list[str]:
        """Python that loads a trained adapter with transformers and peft alone, and tries it.

        Args:
            base: where transformers finds the base model, as a Python expression.
            adapter: where the adapter is, also as a Python expression.
            label_names: names of the classes, which the lines then print instead of numbers.
        """
        classes = f"id2label={dict(enumerate(label_names))}" if label_names else f"num_labels={self.labels}"
        # The checkpoint of the base model may have a classifier of another size.
        labels = f", {classes}, ignore_mismatched_sizes=True" if self.contract.classes else ""
        new = "# transformers may warn that the classifier of the base model is new: the adapter's replaces it"
        processor = (
            f"tokenizer = AutoTokenizer.from_pretrained({base})"
            if self.processor_class == "AutoTokenizer"
            else f'processor = {self.processor_class}.from_pretrained({base}, backend="pil")  # as in the training'
        )
        return [
            "from peft import PeftModel",
            f"from transformers import {self.auto_class}, {self.processor_class}",
            *([new] if labels else []),
            f"base = {self.auto_class}.from_pretrained({base}{labels})",
            f"model = PeftModel.from_pretrained(base, {adapter})",
            processor,
            *self.example_lines(),
        ]

    def dummy_labels(self, inputs: Mapping[str, torch.Tensor], generator: torch.Generator) -> torch.Tensor:
        """Public random labels for the self-test, as a micro-batch has them, for the dummy `inputs` of `Rows`.

        For text, `inputs["attention_mask"]` is 1 where a record has a token and 0 where it is padded.
        """
        import torch

        if self.target is Target.RECORD_LABEL:
            return torch.randint(self.labels, (len(next(iter(inputs.values()))),), generator=generator)
        mask = inputs["attention_mask"]
        return torch.randint(self.labels, mask.shape, generator=generator).masked_fill(mask == 0, IGNORE_INDEX)
