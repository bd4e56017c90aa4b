"""The registry of data formats agrees with the contract, and no two formats compete for a file."""

import pickle
from collections import Counter

import pytest

from tensafe_api.resources.data import FILE_FORMATS
from tensorguard.data.formats import FORMATS, format_named, format_of


def test_every_format_of_the_contract_is_registered_once():
    """A format is one class here and one name in `tensafe_api.resources.data.FileFormat`."""
    assert sorted(each.name for each in FORMATS) == sorted(FILE_FORMATS)


def test_no_ending_belongs_to_two_formats():
    endings = Counter(ending for each in FORMATS for ending in each.endings)
    assert set(endings.values()) == {1}
    assert all(ending.startswith(".") and ending == ending.lower() for ending in endings)


@pytest.mark.parametrize("each", FORMATS, ids=lambda each: each.name)
def test_format_can_be_sent_to_ray_tasks(each):
    assert pickle.loads(pickle.dumps(each)).name == each.name
    assert format_named(each.name) is each


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("s3://b/a.parquet", "parquet"),
        ("a.PQ", "parquet"),
        ("a.b.ndjson", "jsonl"),
        ("a.json.gz", "jsonl"),
        ("a.csv.ZST", "csv"),
        ("a.tsv.xz", "tsv"),
        ("a.txt", None),
        ("a.gz", None),
        ("csv", None),
    ],
)
def test_format_of_a_file_follows_from_its_name(path, name):
    found = format_of(path)
    assert (found.name if found else None) == name
