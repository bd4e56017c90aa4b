"""Runs one rank on its node of a Ray cluster, from the values that the driver sends to the end of the training.

It prepares its shard as a pod does (`runners.pod.worker.configure`), in a folder of the node. Ledger, run log and stop
flag are in the run's folder, which all nodes share, as on one machine.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from tensorguard.aggregation.channel import Channel
from tensorguard.runners.nodes.node_files import NodeFiles, scratch_folder
from tensorguard.runners.pod.worker import Barrier, configure, record_failed_start
from tensorguard.training.collective_errors import AttemptFailed
from tensorguard.training.worker import train


def train_on_node(files: NodeFiles, channel: Channel, device: torch.device, barrier: Barrier) -> None:
    """Take part in one attempt until it ends; rank 0 writes to the run log how it ended.

    Raises:
        Exception: an error that a restart may fix, as in `training.worker.train`.
    """
    with scratch_folder(files.job().metadata.uid or "", channel.rank) as scratch:
        files = replace(files, scratch=str(scratch))
        try:
            config = configure(files, channel, barrier)
        except AttemptFailed as failure:
            record_failed_start(files, channel.rank, files.attempt, failure)
            return
        train(replace(config, last_failure=files.last_failure), channel, device)
