"""Mistakes that would make a privacy claim false, each as a change of the source, with the tests that must fail.

A mutation is one or several exact replacements. `run.py` applies them in a copy of the source tree, one mutation at a
time. `test_mutations.py` checks that the texts and the names of the tests are current. A new mutation is one more entry
in `data.py`, `mechanism.py`, `gradients.py`, `protocol.py`, `cluster.py`, `claims.py`, `composition.py`, `wiring.py`,
`images.py`, `jobs.py`, `signing.py`, `encryption.py` or `audit_log.py`.
"""

from __future__ import annotations

from mutations.audit_log import AUDIT_LOG
from mutations.claims import CLAIMS
from mutations.cluster import CLUSTER
from mutations.composition import COMPOSITION
from mutations.data import DATA
from mutations.encryption import ENCRYPTION
from mutations.gradients import GRADIENTS
from mutations.images import IMAGES
from mutations.jobs import JOBS
from mutations.mechanism import MECHANISM
from mutations.mutation import Edit, Mutation
from mutations.protocol import PROTOCOL
from mutations.signing import SIGNING
from mutations.wiring import WIRING

__all__ = ["MUTATIONS", "Edit", "Mutation"]

MUTATIONS: tuple[Mutation, ...] = (
    *DATA,
    *MECHANISM,
    *GRADIENTS,
    *PROTOCOL,
    *CLUSTER,
    *CLAIMS,
    *COMPOSITION,
    *WIRING,
    *IMAGES,
    *JOBS,
    *SIGNING,
    *AUDIT_LOG,
    *ENCRYPTION,
)
