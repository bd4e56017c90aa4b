"""The causal-lm example's rows: the same for the same seed, true to their prompts, and fit for the manifest."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from tensafe_api.manifest.text import load_manifest

EXAMPLE = Path(__file__).parents[2] / "examples" / "causal-lm"


@pytest.fixture(scope="module")
def make() -> ModuleType:
    spec = importlib.util.spec_from_file_location("causal_lm_make", EXAMPLE / "make_model_and_data.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_rows_follow_the_seed(make: ModuleType) -> None:
    assert make.rows(20, 1, diary_share=1) == make.rows(20, 1, diary_share=1)
    assert make.rows(20, 1, diary_share=1) != make.rows(20, 2, diary_share=1)


@pytest.mark.parametrize("diary_share", [0, 1])
def test_completions_tell_what_the_prompt_holds(make: ModuleType, diary_share: int) -> None:
    for row in make.rows(200, 3, diary_share):
        attributes = dict(part.split("[") for part in row["prompt"].removesuffix("] -> ").split("], "))
        for attribute in ("name", "kind", "food", "rating", "area", "price"):
            assert attributes.get(attribute, "") in row["completion"]


def test_public_rows_are_seldom_and_private_rows_always_diaries(make: ModuleType) -> None:
    def diaries(rows: list[dict[str, str]]) -> int:
        return sum(row["completion"].startswith(("We went", "Last night")) for row in rows)

    assert diaries(make.rows(300, 4, diary_share=1)) == 300
    assert 0 < diaries(make.rows(3000, 4, make.DIARY_SHARE)) < 200


def test_manifest_fits_the_data(make: ModuleType) -> None:
    job = load_manifest(EXAMPLE / "job.yaml")
    assert job.spec.dataset.unit.at_least <= make.PRIVATE_ROWS
    assert {job.spec.dataset.columns.prompt, job.spec.dataset.columns.completion} == set(make.rows(1, 1, 1)[0])
    tokenizer = make.train_tokenizer(
        [row["prompt"] + row["completion"] for row in make.rows(1000, 5, make.DIARY_SHARE)]
    )
    lengths = [len(tokenizer(row["prompt"] + row["completion"]).input_ids) + 1 for row in make.rows(500, 6, 1)]
    assert max(lengths) <= job.spec.training.max_length
