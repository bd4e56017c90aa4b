"""The benchmark on E2E: which pairs are private, and which are public."""

from pathlib import Path

import pytest

from benchmarks import e2e_nlg
from benchmarks.corpora import CorpusMissing


def test_pairs_are_prompt_and_completion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "e2e").mkdir()
    (tmp_path / "e2e" / "devset.csv").write_text('mr,ref\n"name[A], area[b]","A is in b."\n', encoding="utf-8")
    monkeypatch.setenv("TENSAFE_DATA", str(tmp_path))
    assert e2e_nlg.pairs("devset") == [{"prompt": "name[A], area[b] ->", "completion": " A is in b."}]
    with pytest.raises(CorpusMissing, match="put E2E in a folder e2e/ and name its parent in TENSAFE_DATA"):
        e2e_nlg.pairs("testset_w_refs")


def test_halves_share_no_meaning() -> None:
    found = [{"prompt": f"meaning {number % 7}", "completion": f"sentence {number}"} for number in range(40)]
    first, second = e2e_nlg.split_by_meaning(found)
    assert sorted(pair["completion"] for pair in first + second) == sorted(pair["completion"] for pair in found)
    assert {pair["prompt"] for pair in first}.isdisjoint(pair["prompt"] for pair in second)
    assert first and second
