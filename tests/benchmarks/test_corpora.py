"""The benchmarks read their rows exactly, and the error for a missing data set names the fix."""

from pathlib import Path

import pytest

from benchmarks import corpora


def test_benchmarks_are_the_repositorys_package() -> None:
    """A library installs a package of the same name; the repository's root must come before it."""
    assert Path(corpora.__file__).parents[1] == Path(__file__).parents[2]


def test_sst2_keeps_quotes_and_tabs_in_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sst2").mkdir()
    (tmp_path / "sst2" / "dev.tsv").write_text('a " lone quote\t1\nwith\ta tab\t0\n', encoding="utf-8")
    monkeypatch.setenv("TENSAFE_DATA", str(tmp_path))
    assert corpora.sst2("dev") == corpora.Examples(('a " lone quote', "with\ta tab"), (1, 0))


def test_error_for_missing_sst2_names_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSAFE_DATA", str(tmp_path))
    with pytest.raises(corpora.CorpusMissing, match="put SST-2 in a folder sst2/ and name its parent in TENSAFE_DATA"):
        corpora.sst2("train")


def test_jsonl_labels_are_indices_into_the_names(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "x", "label": "b"}\n{"text": "y", "label": "a"}\n', encoding="utf-8")
    assert corpora.jsonl(path, ("a", "b")).labels == (1, 0)
