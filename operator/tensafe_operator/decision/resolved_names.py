"""Resolved names: a job keeps the image, the version of Ray and the model's commit with which it started.

A tag can be moved to another image, a branch to another commit, and another release of the operator has another default
image. `status.resolved` holds what the first attempt had that acquired the ledger, and every later attempt gets the
same. The image is recorded with the attempt, and its digest as soon as the workers run and one of them holds the
ledger. The trainer records the commit in the ledger. Until an attempt has acquired the ledger, each one has the image
of its own time: nothing was trained with the one before, which may not even exist.

While a job is suspended its author may write another image. The next attempt has that one. An image of a profile is
resolved like one that the operator chose: the job keeps it when the profile is edited.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from tensafe_api.resources.cluster import Cluster
from tensafe_api.resources.ledger import LedgerStatus
from tensafe_api.resources.status import Resolved
from tensafe_operator import names
from tensafe_operator.children.rayjob import WORKER_CONTAINER
from tensafe_operator.decision.admission import Admitted
from tensafe_operator.decision.observation import Object
from tensafe_operator.settings import Settings

_PULLED = re.compile(r"(?:docker-pullable://)?(?P<repository>.+)@(?P<digest>sha256:[0-9a-f]{64})")
"""How a container runtime names an image that it has pulled. One that was loaded from a file has a name of another
repository or none, and could not be pulled by its digest.
"""
_LONGEST_IMAGE = 512


def resolve_image(
    before: Resolved, asked: Cluster, cluster: Cluster, settings: Settings, record: LedgerStatus | None
) -> Resolved:
    """Return the names for the next attempt of a job.

    Args:
        asked: its cluster as its author wrote it.
        cluster: the same with the values of the job's profile.
        record: what its ledger records; None before an attempt has acquired it.
    """
    if record is not None and _is_kept(before, asked):
        return before
    image, ray_version = cluster.image or settings.image, cluster.ray_version or settings.ray_version
    return before.model_copy(update={"image": image, "ray_version": ray_version})


def has_resolved_image(resolved: Resolved, admitted: Admitted) -> bool:
    """Return whether the job that `with_resolved` returned has the image in `resolved`."""
    return admitted.job.spec.cluster.image in (None, resolved.image) or resolved.image is None


def with_digest(before: Resolved, pods: Iterable[Object], attempt: int, record: LedgerStatus | None) -> Resolved:
    """Return the names with the digest of the image, once all workers of the attempt that run agree on it.

    One of them must be the pod that holds the ledger. Any user may give a pod the labels of a worker, and statements
    name the digest.
    """
    image = before.image
    if image is None or "@" in image:
        return before
    own = [pod for pod in pods if names.attempt_of(pod) == attempt]
    if not any(_image_ids(pod) for pod in own if _holds_ledger(pod, attempt, record)):
        return before
    ids = [each for pod in own for each in _image_ids(pod)]
    digests = {_digest_of(each, image) for each in ids}
    if len(digests) != 1 or (digest := digests.pop()) is None or len(f"{image}@{digest}") > _LONGEST_IMAGE:
        return before
    return before.model_copy(update={"image": f"{image}@{digest}"})


def with_resolved(admitted: Admitted, resolved: Resolved) -> Admitted:
    """Return the job with the names that `resolved` holds."""
    spec, cluster = admitted.job.spec.at_commit(resolved.model_commit), admitted.job.spec.cluster
    if _is_kept(resolved, cluster):
        kept = {"image": resolved.image, "ray_version": cluster.ray_version or resolved.ray_version}
        spec = spec.model_copy(update={"cluster": cluster.model_copy(update=kept)})
    return replace(admitted, job=admitted.job.model_copy(update={"spec": spec}))


def _is_kept(resolved: Resolved, cluster: Cluster) -> bool:
    """Return whether the resolved image is that of `cluster`, or one that the operator or a profile chose."""
    image = resolved.image
    return image is not None and (cluster.image in (None, image) or image.startswith(f"{cluster.image}@"))


def _digest_of(image_id: str, image: str) -> str | None:
    """The digest in the name that a runtime gives an image, if it is of the repository of `image`."""
    pulled = _PULLED.fullmatch(image_id)
    return pulled["digest"] if pulled and _is_of(pulled["repository"], image) else None


def _is_of(repository: str, image: str) -> bool:
    """Whether a runtime's name of a repository is that of an image. Runtimes put the registry before a short name, and
    `library` before a name of one word.
    """
    path, slash, last = image.rpartition("/")
    own = f"{path}{slash}{last.partition(':')[0]}"
    first = own.partition("/")[0]
    is_short = "/" not in own or not ("." in first or ":" in first or first == "localhost")
    after_registry = repository.partition("/")[2]
    return repository == own or (is_short and after_registry in (own, f"library/{own}"))


def _holds_ledger(pod: Object, attempt: int, record: LedgerStatus | None) -> bool:
    """Whether the pod charges the ledger in this attempt. Only the API server gives a pod the token for that."""
    charges = record.charges if record is not None else ()
    return any((each.attempt, each.pod_uid) == (attempt, pod["metadata"].get("uid")) for each in charges)


def _image_ids(pod: Object) -> list[str]:
    containers = (pod.get("status") or {}).get("containerStatuses") or ()
    return [str(each.get("imageID") or "") for each in containers if each.get("name") == WORKER_CONTAINER]
