"""The `README.md` of an adapter: a model card with the front matter of the Hugging Face Hub.

In: a statement, and what is known of the base model. Out: Markdown. peft ignores the file when it loads an adapter, and
keeps its text when it saves one there. A fact that is not known, such as a licence, is left out and never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from huggingface_hub import ModelCardData
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tensafe_api.sanitize import clean
from tensafe_api.statement.document import parse_statement
from tensorguard.statements.sentences import VERIFY, claim_sentence

_TEMPLATE = "model_card.md.j2"
_MARKUP = re.compile(r"([\\`*_{}\[\]<>|~&$@]|:(?=//)|(?<=www)\.)")
"""Characters that can begin markup within a line, or a link without any."""
TAGS = ("differential-privacy", "dp-sgd", "lora")
PRIVATE = "private"
"""The value of `datasets`: no data set of the Hub."""


@dataclass(frozen=True)
class BaseModel:
    """What is known of the base model.

    Attributes:
        name: as the manifest has it.
        hub_id: its id on the Hub; None for files of other origin, because the Hub refuses a path as `base_model`.
        license: the fields `license`, `license_name` and `license_link` of its own model card, as far as it has them.
    """

    name: str
    hub_id: str | None = None
    license: Mapping[str, str] | None = None


def render_model_card(
    raw: Mapping[str, Any], base: BaseModel, use: Sequence[str] = (), *, encrypted: bool = False
) -> str:
    """The model card of the adapter that the statement `raw` is about.

    Args:
        use: Python that loads the adapter at ADAPTER beside the model at BASE, and tries it (`Task.loading_lines`).
        encrypted: whether the weights beside the card are encrypted.

    Raises:
        StatementError: the statement is malformed.
    """
    document = parse_statement(raw)
    claim, licence = document.claim, dict(base.license or {})
    data = ModelCardData(
        base_model=base.hub_id,
        datasets=PRIVATE,
        library_name="peft",
        license=licence.get("license"),
        license_name=licence.get("license_name"),
        license_link=licence.get("license_link"),
        tags=list(TAGS),
        differential_privacy={
            "epsilon": claim.epsilon,
            "delta": claim.delta,
            "unit": claim.unit,
            "adjacency": claim.adjacency,
            "steps": claim.steps,
            "mechanism": document.mechanism.run,
            "noise_multiplier": document.mechanism.noise_multiplier,
            "sample_rate": document.mechanism.sample_rate,
            "clip_norm": document.mechanism.clip,
            "accountant": document.accounting.accountant,
            "statement": "statement.json",
        },
    )
    environment = Environment(
        loader=PackageLoader("tensorguard.statements"),
        autoescape=False,  # Markdown: `_finalize` escapes
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_finalize,
    )
    return environment.get_template(_TEMPLATE).render(
        front_matter=Markup(data.to_yaml()),
        statement=document,
        sentence=claim_sentence(document),
        base=base,
        use=[Markup(line) for line in use],
        encrypted=encrypted,
        licence=licence.get("license_name") or licence.get("license"),
        verify=Markup(VERIFY),
        python_base=Markup(_python_text(base.name)),
    )


def _finalize(value: Any) -> Any:
    """Text as Markdown that shows it as it is, on one line. No line of the template starts with such a text."""
    return value if isinstance(value, Markup | int) else _MARKUP.sub(r"\\\1", clean(value))


def _python_text(text: str) -> str:
    """A text as a Python literal within a fenced block of code."""
    return repr(clean(text)).replace("`", "\\x60")
