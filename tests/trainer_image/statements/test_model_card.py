"""The model card of an adapter: the Hub's library reads it, and no text becomes markup or front matter."""

from __future__ import annotations

import copy
import re
import shlex
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt

from tensorguard.cli.main import command_parser
from tensorguard.statements.model_card import BaseModel, render_model_card

HUB = BaseModel("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B", {"license": "apache-2.0"})
HOSTILE = (
    "---\nlicense: mit\n---",
    "<script>alert(1)</script>",
    "[link](https://evil.example)",
    "![picture](https://evil.example/x.png)",
    "https://evil.example and www.evil.example and me@evil.example",
    "`code` *strong* _weak_ ~~gone~~ | cell |",
    "```\n# heading",
    "'''; import os; os.system('x') #",
    "{{ 7 * 7 }}",
    "&lt;b&gt; \\<i\\>",
    "!!python/object/apply:os.system [x]",
    "\x00\x1b\u202e",
)


@pytest.mark.slow
def test_front_matter_has_the_fields_of_the_hub(statement: dict[str, Any]) -> None:
    data = ModelCard(render_model_card(statement, HUB)).data
    assert data.base_model == "Qwen/Qwen3-0.6B"
    assert data.datasets == "private"
    assert data.library_name == "peft"
    assert data.license == "apache-2.0"
    assert {"lora", "differential-privacy"} <= set(data.tags or ())


@pytest.mark.slow
def test_front_matter_has_the_claim_in_the_digits_of_the_statement(statement: dict[str, Any]) -> None:
    privacy = ModelCard(render_model_card(statement, HUB)).data.differential_privacy
    claim, mechanism = statement["claim"], statement["mechanism"]
    for field in ("epsilon", "delta", "unit", "adjacency", "steps"):
        assert privacy[field] == claim[field]
    assert privacy["noise_multiplier"] == mechanism["noiseMultiplier"]
    assert privacy["sample_rate"] == mechanism["sampleRate"]
    assert privacy["clip_norm"] == mechanism["clip"]
    assert privacy["accountant"] == statement["accounting"]["accountant"]


def test_only_a_model_of_the_hub_is_named_as_its_base(make: Any) -> None:
    card = ModelCard(render_model_card(make(), BaseModel("/models/base")))
    assert card.data.base_model is None and "base_model" not in card.data.to_dict()
    assert "adapter for /models/base" in card.text


def test_license_that_is_not_known_is_not_invented(make: Any) -> None:
    card = ModelCard(render_model_card(make(), BaseModel("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B")))
    assert not [field for field in card.data.to_dict() if field.startswith("license")]
    assert "The license is not known" in card.text


def test_license_with_a_name_keeps_its_link(make: Any) -> None:
    licence = {"license": "other", "license_name": "llama3", "license_link": "https://example.com/license"}
    card = ModelCard(render_model_card(make(), BaseModel("a/b", "a/b", licence)))
    assert {field: card.data.get(field) for field in licence} == licence
    assert "names the license llama3" in card.text


def test_card_has_the_commands_that_verify_its_folder(make: Any) -> None:
    text = ModelCard(render_model_card(make(), HUB)).text
    section = text.partition("\n## Verify\n")[2].partition("\n## ")[0]
    parser = command_parser()
    (ours,) = re.findall(r"^tensafe (verify .*)$", section, re.MULTILINE)
    arguments = parser.parse_args(shlex.split(ours))
    assert (arguments.place, str(arguments.public_key)) == ("DIR", "FILE")
    (theirs,) = re.findall(r"^model_signing .*$", section, re.MULTILINE)
    assert theirs == "model_signing verify key --signature DIR/model.sig --public_key FILE DIR"
    assert "the adapter is not signed" in section
    encrypted = ModelCard(render_model_card(make(), HUB, encrypted=True)).text
    assert "A decrypted folder\nnever has one" in encrypted and "A decrypted folder" not in text


def test_same_statement_gives_the_same_card(make: Any) -> None:
    assert render_model_card(make(), HUB) == render_model_card(make(), HUB)


def rendered(card: str) -> str:
    return MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(card.partition("\n---\n")[2])


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_no_text_becomes_markup_or_front_matter(text: str, make: Any) -> None:
    """The page that the Hub shows has the same elements, and its front matter the same fields."""
    plain, changed = make(), copy.deepcopy(make())
    for block, field in (("job", "name"), ("claim", "unitDefinition"), ("mechanism", "run"), ("accounting", "library")):
        changed[block][field] = text
    before = render_model_card(plain, BaseModel("base", license={"license": "mit"}))
    after = render_model_card(changed, BaseModel(text, license={"license": text}))
    elements = r"<[a-z/][^>]*>"
    assert re.findall(elements, rendered(after)) == re.findall(elements, rendered(before))
    assert not re.search(r"\w://|www\.|\w@", after.split("\n---\n")[1].partition("## Use")[0]), "no link by itself"
    assert ModelCard(after).data.license == text
    front = yaml.safe_load(after.split("\n---\n")[0])
    assert front["license"] == front["differential_privacy"]["mechanism"] == text
    assert front.keys() == yaml.safe_load(before.split("\n---\n")[0]).keys()
    code, as_before = (re.findall(r"```python\n(.*?)\n```", card, re.DOTALL) for card in (after, before))
    compile(code[0], "card", "exec")
    assert [len(each.splitlines()) for each in code] == [len(each.splitlines()) for each in as_before] == [2]
