"""A job that is written and read again is the same job, whatever fields it has."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tensafe_api.manifest.text import dump_manifest, load_manifest, parse_job
from tensafe_api.resources.job import TenSafeTrainingJob
from tests.support.manifests import MINIMAL, changed

decimals = st.from_regex(r"[1-9][0-9]{0,3}(\.[0-9]{1,4})?(e-?[0-9])?", fullmatch=True)
names = st.from_regex(r"[a-z]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True)
words = st.text(min_size=1, max_size=12).filter(lambda text: re.fullmatch(r"\S(.*\S)?", text, re.ASCII))
texts = st.text(max_size=30)
maps = st.dictionaries(texts, texts, max_size=3)
keys = st.from_regex(r"(example\.com/)?[A-Za-z]([-_.a-z]{0,9}[a-z])?", fullmatch=True)
labels = st.dictionaries(keys, keys.filter(lambda key: "/" not in key) | st.just(""), max_size=3)
users = st.fixed_dictionaries(
    {
        "kind": st.just("User"),
        "column": words,
        "maxExamplesPerUnit": st.integers(1, 99),
        "atLeast": st.integers(1000, 2**40),
    }
)
examples = st.fixed_dictionaries({"kind": st.just("Example"), "atLeast": st.integers(1000, 2**40)})
optional_fields = {
    "metadata.labels": maps,
    "metadata.annotations": maps,
    "metadata.namespace": names,
    "spec.model.revision": words,
    "spec.model.chatTemplate": st.text(min_size=1, max_size=60),
    "spec.lora.dropout": st.sampled_from(["0", "0.5", "1e-3"]),
    "spec.lora.targetModules": st.lists(words, unique=True, max_size=4),
    "spec.lora.layers": st.lists(st.integers(0, 80), unique=True, min_size=1, max_size=4),
    "spec.dataset.unit": users | examples,
    "spec.dataset.lineage": words,
    "spec.dataset.columns": st.fixed_dictionaries({"messages": words}, optional={"tools": words}),
    "spec.evaluation": st.fixed_dictionaries(
        {"uri": words.filter(lambda w: not set(":\r") & set(w)), "visibility": st.just("Public")}
    ),
    "spec.training": st.fixed_dictionaries({"epochs": decimals})
    | st.fixed_dictionaries({"steps": st.integers(1, 10**6)}),
    "spec.privacy.noiseMultiplier": decimals.filter(lambda text: 1e-6 <= float(text) <= 1e9),
    "spec.privacy.targetDelta": st.sampled_from(["1e-14", "1e-20"]),
    "spec.privacy.reserveSteps": st.integers(0, 1000),
    "spec.storage": st.fixed_dictionaries({}, optional={"region": words, "secretName": names}),
    "spec.cluster.podLabels": labels,
    "spec.cluster.env": st.lists(
        st.fixed_dictionaries({"name": st.from_regex(r"[A-Z]{1,8}", fullmatch=True), "value": texts}),
        unique_by=lambda variable: variable["name"],
        max_size=3,
    ),
    "spec.cluster.tolerations": st.lists(
        st.fixed_dictionaries(
            {"operator": st.just("Exists"), "effect": st.just("NoExecute")},
            optional={"key": keys, "tolerationSeconds": st.integers(0, 9)},
        ),
        max_size=2,
    ),
    "spec.suspend": st.booleans(),
    "spec.childrenTTLSeconds": st.integers(0, 9999),
    "status": st.fixed_dictionaries({}, optional={"phase": st.just("Pending"), "ledgerName": texts}),
}


@pytest.mark.slow
@settings(max_examples=40)
@given(changes=st.fixed_dictionaries({}, optional=optional_fields), as_json=st.booleans())
def test_written_job_reads_as_the_same_job(changes: dict[str, Any], as_json: bool) -> None:
    job = parse_job(changed(MINIMAL, changes))
    text = dump_manifest(job, "json" if as_json else "yaml")
    assert load_manifest(text) == job
    assert TenSafeTrainingJob.model_validate(yaml.safe_load(text)) == job, "PyYAML alone reads the same"
