"""ImageClassification: the model learns to put an image into one of several classes.

A record is an image and a class. The image is decoded, resized and cropped where other tasks tokenise, and a shard
stores its pixels. It cannot be used if it is damaged, too large, or in a format that `data.images` does not decode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tensorguard.data.images import ImageRecipe, decode
from tensorguard.data.recipe import Recipe
from tensorguard.data.shard import Input, Target
from tensorguard.data.tokenise import Encode, Example
from tensorguard.data.unusable import Unusable
from tensorguard.data.values import UnusableValue
from tensorguard.models.tasks.base import Task

if TYPE_CHECKING:
    import torch
    from peft import PeftModel

    from tensafe_api.resources.model import Model
    from tensorguard.data.rows import Rows
    from tensorguard.models.source import ModelSource


class ImageClassification(Task):
    """One class for each image. A record's loss is the cross entropy of that class."""

    auto_class = "AutoModelForImageClassification"
    peft_type = None
    target = Target.RECORD_LABEL
    heads = ("classifier", "head")
    processor_class = "AutoImageProcessor"

    def load_processor(self, source: ModelSource, model: Model) -> ImageRecipe:
        """How the model wants images (`models.images`)."""
        from tensorguard.models.images import load_image_recipe

        return load_image_recipe(source, trust_remote_code=model.trust_remote_code)

    def pad_id(self, processor: ImageRecipe) -> None:
        return None

    def inputs(self, processor: ImageRecipe) -> Input:
        return processor.pixels

    def rows(self, processor: ImageRecipe, recipe: Recipe, model: PeftModel) -> Rows:
        from tensorguard.data.rows import PixelRows

        return PixelRows(processor, next(model.get_base_model().parameters()).dtype)

    def encoder(self, processor: ImageRecipe, recipe: Recipe) -> Encode:
        return _LabelledImages(processor, recipe)

    def losses(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        from tensorguard.models.losses import classification_losses

        return classification_losses(logits, labels)

    def counts(self, logits: torch.Tensor, labels: torch.Tensor) -> tuple[int, ...]:
        return (int((logits.argmax(dim=-1) == labels).sum()),)

    def metrics(self, counts: Sequence[int], records: int) -> Mapping[str, float]:
        return {"accuracy": sum(counts) / records}

    def example_lines(self) -> Sequence[str]:
        return (
            "from PIL import Image",
            'image = Image.new("RGB", (64, 64), "grey")  # or: Image.open("image.png").convert("RGB")',
            'inputs = processor(image, return_tensors="pt")',
            "print(base.config.id2label[int(model.eval()(**inputs).logits.argmax())])",
        )


@dataclass(frozen=True)
class _LabelledImages:
    """An image and its class."""

    images: ImageRecipe
    recipe: Recipe

    def __call__(self, records: Mapping[str, Sequence[Any]]) -> list[Example | Unusable | None]:
        return [self._example(*record) for record in zip(records["image"], records["label"])]

    def _example(self, image: bytes, label: str) -> Example | Unusable:
        """One image, or why it or its class cannot be used."""
        try:
            number = self.recipe.class_of(label)
        except UnusableValue as error:
            return error.kind
        pixels = decode(image, self.images)
        return Unusable.NO_IMAGE if pixels is None else Example(pixels, number)
