"""Builds the job's PrivacyLedger. It is the only object without an owner: what was spent stays spent when the job is
deleted.
"""

from __future__ import annotations

from tensafe_api.resolve import Claim, ledger_spec
from tensafe_api.resources.job import API_VERSION, TenSafeTrainingJob
from tensafe_api.resources.ledger import LEDGER_KIND, PrivacyLedgerSpec
from tensafe_operator import names
from tensafe_operator.children import Manifest
from tensafe_operator.children.access import account_name, key_digest


def ledger(job: TenSafeTrainingJob, claim: Claim, key: Manifest) -> Manifest:
    """The ledger of an admitted job, with a copy of every privacy value. `key` is the Secret with the job's key."""
    uid = job.metadata.uid or ""
    opened = ledger_spec(job, claim, uid)
    frozen = {name: getattr(opened, name) for name in type(opened).model_fields}
    spec = PrivacyLedgerSpec(
        **frozen,
        service_account_name=account_name(job),
        key_secret_name=key["metadata"]["name"],
        key_digest=key_digest(key),
    )
    return {
        "apiVersion": API_VERSION,
        "kind": LEDGER_KIND,
        "metadata": {
            "name": names.ledger_name(job.metadata.name, uid),
            "namespace": job.metadata.namespace,
            "labels": names.labels(job.metadata.name, uid),
        },
        "spec": spec.model_dump(by_alias=True, mode="json", exclude_none=True),
    }
