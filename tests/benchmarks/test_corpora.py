"""The benchmarks read their rows exactly, and the error for a missing data set names the fix."""

from pathlib import Path

import pytest

from benchmarks import corpora
from benchmarks.classification import WORKLOADS, Workload


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


def test_e2e_sentences_with_a_rating_have_its_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "e2e").mkdir()
    lines = [
        "mr,ref",
        '"name[A], customer rating[low], area[b]",A is bad.',
        '"name[A]",A is.',
        '"customer rating[high]",B.',
    ]
    (tmp_path / "e2e" / "devset.csv").write_text("\n".join(lines), encoding="utf-8")
    monkeypatch.setenv("TENSAFE_DATA", str(tmp_path))
    low, high = corpora.RATINGS.index("low"), corpora.RATINGS.index("high")
    assert corpora.e2e_ratings("devset") == corpora.Examples(("A is bad.", "B."), (low, high))


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
def test_workload_counts_its_rows(workload: Workload) -> None:
    try:
        rows = workload.private()
    except corpora.CorpusMissing as missing:
        pytest.skip(str(missing))
    assert len(rows) == workload.rows and set(rows.labels) == set(workload.test().labels) == set(
        range(workload.num_labels)
    )


def test_jsonl_labels_are_indices_into_the_names(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "x", "label": "b"}\n{"text": "y", "label": "a"}\n', encoding="utf-8")
    assert corpora.jsonl(path, ("a", "b")).labels == (1, 0)
