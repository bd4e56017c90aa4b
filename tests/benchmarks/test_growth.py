"""The growth benchmark: what a part of a step counts, simulated groups, and pictures for the documentation."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import masks
from benchmarks.growth import __main__ as growth
from benchmarks.growth import pictures, steps
from tensafe_api.resources.numeric import MAX_WORKERS
from tensorguard.aggregation.neighbours import MAX_DEGREE


def clocks(directory: Path, rank: int, *lines: dict[str, float]) -> None:
    (directory / f"clocks-{rank}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_rest_of_a_step_is_what_no_part_counts(tmp_path: Path) -> None:
    zero = {"wall": 0.0, "all": 0.0, "gradients": 0.0, "noise": 0.0, "masks": 0.0}
    first = {"wall": 9.0, "all": 9.0, "gradients": 9.0, "noise": 9.0, "masks": 9.0}
    after = {"wall": 9.5, "all": 9.1, "gradients": 9.05, "noise": 9.02, "masks": 9.01}
    clocks(tmp_path, 0, zero, zero, first, after)
    parts, wall = steps._medians([steps._differences(tmp_path, 0)])
    assert wall == pytest.approx(500)
    assert parts == pytest.approx({"gradients": 50, "noise": 20, "masks": 10, "rest": 20})


def test_group_larger_than_a_job_is_simulated() -> None:
    cost = masks.measure(MAX_WORKERS + 44, dimension=10, repeats=1)
    assert (cost.workers, cost.neighbours) == (MAX_WORKERS + 44, MAX_DEGREE)
    assert min(cost.masks, cost.complete, cost.tags, cost.start) > 0


def test_dimension_grows_with_the_rank() -> None:
    assert steps.dimension(4) == 4 * steps.dimension(1)


@pytest.mark.slow
def test_picture_is_small_and_the_same_for_the_same_figures(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        pictures.draw(tmp_path / name, "A step", "workers", [1, 2, 16], {"noise": [1.0, 2.0, 3.0], "rest": [3, 2, 1]})
    first = (tmp_path / "a.svg").read_bytes()
    assert first == (tmp_path / "b.svg").read_bytes()
    assert len(first) < 60_000
    words = {"".join(text.itertext()).strip() for text in ElementTree.fromstring(first).iter() if "text" in text.tag}
    assert {"A step", "workers", "noise", "rest", "16"} <= words


@pytest.mark.slow
def test_every_part_writes_figures_and_a_picture(tmp_path: Path) -> None:
    file = tmp_path / "growth.json"
    assert growth.main(["--short", "--json", str(file), "--pictures", str(tmp_path)]) == 0
    found = json.loads(file.read_text())
    for part in ("workers", "dimension", "masks"):
        assert found[part]
        assert (tmp_path / f"growth-{part}.svg").exists()
    assert all(each["milliseconds"]["gradients"] > 0 for each in found["workers"] + found["dimension"])
    assert found["workers"][1]["milliseconds"]["masks"] > 0
