"""The chart's README is what helm-docs writes from values.yaml, and has every value."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from docs.chart_readme import README, generate
from tests.support.programs.helm import CHART


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Each name in values.yaml that has a value of its own, with the names above it."""
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name


def test_table_has_every_value_and_a_description() -> None:
    rows = re.findall(r"^\| (\S+) \| \w+ \| (`.*?`) \| (.*) \|$", README.read_text(), re.MULTILINE)
    described = {name: text for name, _, text in rows}
    assert all(described.values()), [name for name, text in described.items() if not text]
    names = list(leaves(yaml.safe_load((CHART / "values.yaml").read_text())))
    assert len(names) > 60
    missing = [name for name in names if not any(name == row or name.startswith(f"{row}.") for row in described)]
    assert missing == []
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    for row in described:
        found: Any = values
        for part in row.split("."):
            found = found[part]  # a row of a value that no longer exists is a KeyError


@pytest.mark.cluster
def test_readme_is_what_helm_docs_writes() -> None:
    """Skipped, with the reason, where helm-docs cannot be built. `make docs` writes the file. Marked as the other tests
    that build a Go program.
    """
    assert README.read_text() == generate()
