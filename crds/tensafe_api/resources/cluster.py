"""Where a job runs: `spec.cluster`, `spec.retry` and `spec.observability` of the manifest.

The operator's `children` package builds a RayJob from these blocks; a local run uses `workers` and `worker` only. The
blocks do not embed a PodTemplateSpec: it alone would make the CRD too large for `kubectl apply`, and most of its fields
would have to be refused. What a TenSafeClusterProfile may have too is in `pods`.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from tensafe_api.resources.base import Block, Rule
from tensafe_api.resources.numeric import MAX_GPUS, MAX_WORKERS, Cpus, Memory, Size, Workers
from tensafe_api.resources.pods import HeadPlacement, PodSettings
from tensafe_api.resources.strings import ObjectName, OptionalName, ResourceName


class Worker(Block):
    """Resources of each worker. A worker is one pod and one trust domain.

    It has one training process (rank), or one for each of its GPUs.
    """

    gpus: Annotated[int, Field(strict=True, ge=0, le=MAX_GPUS)] = Field(
        0,
        description=f"GPUs of each worker, up to {MAX_GPUS}. Each has a training process (rank) with its own records "
        "and its share of the noise. 0: one process without a GPU.",
    )
    gpu_resource: ResourceName = Field(
        "nvidia.com/gpu", description="Resource name of the GPUs in the cluster. Used when gpus is above 0."
    )
    cpus: Cpus = Field("1", description="CPU request of each worker, in cores. No limit: idle cores are used too.")
    memory: Memory = Field("8Gi", description="Memory of each worker, as request and limit.")
    ephemeral_storage: Size | None = Field(
        None,
        description="Request of local disk for each worker: its share of the tokenised data, the model's files, and "
        "what it keeps of the frozen layers, at most half of it (`tensafe plan` shows the size). Default: none.",
    )


class Head(HeadPlacement):
    """The Ray head. It schedules the workers and has no access to records or keys."""

    cpus: Cpus = Field("2", description="CPU request of the head, in cores. No limit: idle cores are used too.")
    memory: Memory = Field("8Gi", description="Memory of the head, as request and limit. Ray itself takes about 2 GB.")


class ClusterSize(Block):
    """How many pods a job has and how large they are. Each rank adds a share of the noise, so only the job says it."""

    workers: Workers = Field(description="Number of workers, from 1 to 256. With one worker there is no sum to mask.")
    worker: Worker = Field(default_factory=Worker, description="Resources of each worker.")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"!has(self.worker) || !has(self.worker.gpus) || self.workers * self.worker.gpus <= {MAX_WORKERS}",
            f"cluster must have at most {MAX_WORKERS} GPUs: lower workers or worker.gpus",
            lambda cluster: cluster.workers * cluster.worker.gpus <= MAX_WORKERS,
            ".worker.gpus",
            id="GPULimit",
        ),
    )

    @property
    def ranks_per_worker(self) -> int:
        """Training processes of each worker: one for each of its GPUs, or one without a GPU."""
        return max(1, self.worker.gpus)

    @property
    def ranks(self) -> int:
        """Training processes of the job. Each has its own records, its share of the noise and its own masks."""
        return self.workers * self.ranks_per_worker


class Cluster(PodSettings, ClusterSize):  # the fields of the last base come first in the schema
    """The pods of the job. While the job is suspended, all fields but workers and serviceAccountName may change."""

    head: Head = Field(default_factory=Head, description="Resources of the Ray head.")
    service_account_name: OptionalName = Field(
        "",
        description="Service account of the workers. Only it may charge the ledger, so it cannot change. Default: "
        "one that the operator creates.",
    )
    profile_ref: ObjectName | None = Field(
        None,
        description="TenSafeClusterProfile whose values replace the fields of cluster that are absent here. "
        "Default: none.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (*PodSettings.rules, *ClusterSize.rules)


class Retry(Block):
    """How often a failed job is retried. It may change while the job is suspended."""

    max_attempts: Annotated[int, Field(strict=True, ge=1, le=64)] = Field(
        3,
        description="How many attempts may fail before the job fails. Each resumes at the last checkpoint. Suspended "
        "ones, and those that never acquired the ledger, do not count, but a job has at most 64.",
    )
    max_restarts: Annotated[int, Field(strict=True, ge=0, le=1000)] = Field(
        5, description="Maximum number of restarts of the workers within one attempt."
    )


class Observability(Block):
    """What is shown while the job trains."""

    private_metrics: Literal["Hidden", "Internal"] = Field(
        "Hidden",
        description="Training loss, gradient norms and batch sizes: exact functions of private data. Hidden: kept "
        "nowhere. Internal: each worker keeps them in private-metrics-rankN.jsonl in the run's private folder (in a "
        "pod /var/run/tensafe, lost with the pod), and the privacy statement records that.",
    )
    audit_log: Literal["Disabled", "Enabled"] | None = Field(
        None,
        description="Enabled: keep a chained log of charges and checkpoints beside the checkpoints. Default: Disabled.",
    )
