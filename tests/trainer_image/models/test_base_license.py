"""The license of a base model: as its own card names it, or not known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tensorguard.models import base_license as module
from tensorguard.models.base_license import base_license
from tensorguard.models.source import ModelSource


def in_folder(folder: Path, card: str | bytes | None) -> dict[str, str]:
    if card is not None:
        (folder / "README.md").write_bytes(card if isinstance(card, bytes) else card.encode())
    return dict(base_license(ModelSource("base", str(folder), None)))


def test_license_of_a_model_card(tmp_path: Path) -> None:
    assert in_folder(tmp_path, "---\nlicense: apache-2.0\nlanguage: en\n---\n# Base\n") == {"license": "apache-2.0"}


def test_license_with_a_name_and_a_link(tmp_path: Path) -> None:
    card = "---\nlicense: other\nlicense_name: llama3\nlicense_link: https://example.com/license\n---\n"
    found = in_folder(tmp_path, card)
    assert found == {"license": "other", "license_name": "llama3", "license_link": "https://example.com/license"}


def test_link_into_the_repository_of_the_base_model_is_left_out(tmp_path: Path) -> None:
    card = "---\nlicense: other\nlicense_name: llama3\nlicense_link: LICENSE\n---\n"
    assert in_folder(tmp_path, card) == {"license": "other", "license_name": "llama3"}


@pytest.mark.parametrize(
    "card",
    [
        None,
        "# Base\nMIT, I think.\n",
        "---\nlanguage: en\n---\n",
        "---\nlicense: [mit, apache-2.0]\n---\n",
        "---\nlicense_name: llama3\n---\n",
        "---\nlicense: " + "x" * 300 + "\n---\n",
        "---\nlicense: !!python/object/apply:os.system [x]\n---\n",
        "---\n1: 2\n---\n",
        "---\n- a\n---\n",
        "---\n{\n---\n",
        b"---\nlicense: \xff\n---\n",
    ],
    ids=range(11),
)
def test_license_that_no_card_names_is_not_known(card: str | bytes | None, tmp_path: Path) -> None:
    assert in_folder(tmp_path, card) == {}


def test_card_of_a_hub_model_is_that_of_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def download(*where: str, **how: Any) -> str:
        asked.append((*where, how))
        (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n")
        return str(tmp_path / "README.md")

    monkeypatch.setattr(module, "hf_hub_download", download)
    source = ModelSource("team/base", "team/base", "ab" * 20)
    assert base_license(source) == base_license(source) == {"license": "mit"}
    assert asked == [("team/base", "README.md", {"revision": "ab" * 20})], "asked once, for all checkpoints"


def test_hub_that_does_not_answer_leaves_the_license_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(*where: str, **how: Any) -> str:
        raise OSError("no network")

    monkeypatch.setattr(module, "hf_hub_download", download)
    assert base_license(ModelSource("team/other", "team/other", "cd" * 20)) == {}
