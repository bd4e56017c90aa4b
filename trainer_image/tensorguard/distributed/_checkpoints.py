"""The callback of the guide that publishes signed and encrypted checkpoints in a folder of their own.

The workers sign and encrypt each checkpoint before it is stored, so no plain copy of it exists. The callback asks for
that in the configuration (`configure`), and copies what was published: the same bytes, with the same digests and
signatures. `tensafe verify` checks a copy as it checks the original.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from tensorguard.checkpoint.store import CheckpointAbsent, CheckpointStore
from tensorguard.distributed._callbacks import RunningTrainer, TenSafeCallback
from tensorguard.distributed._config import TenSafeTrainingConfig, require_bool
from tensorguard.distributed._errors import ConfigurationError
from tensorguard.distributed._manifests import as_uri, checkpoint_uri, run_folder
from tensorguard.ledger.contract import LedgerMissing, PublishedCheckpoint
from tensorguard.ledger.file import FileLedger
from tensorguard.signing.keys import SIGNING_KEY_VARIABLE
from tensorguard.storage import name_in
from tensorguard.training.checkpointing import checkpoint_name
from tensorguard.training.config import RUN_LOG
from tensorguard.training.run_log import RunLogReader, Saved

log = logging.getLogger("tensorguard.distributed")


class TSSPCheckpointCallback(TenSafeCallback):
    """Copies each published checkpoint to a folder that readers can be given, signed and encrypted as asked.

    Unlike `checkpoint_dir`, the folder keeps all checkpoints, and nothing in it is replaced.
    """

    def __init__(
        self,
        output_dir: str | Path,
        sign_checkpoints: bool = True,
        encrypt_weights: bool = False,
        *,
        signing_key: str | Path | None = None,
        recipients: Sequence[str] = (),
    ) -> None:
        """Refer to a folder, without creating it.

        Args:
            output_dir: a path, s3:// or gs://. It must not have checkpoints of another run.
            sign_checkpoints: sign them, with the key of `signing_key`.
            encrypt_weights: encrypt them to `recipients`.
            signing_key: as of the configuration; default: that of the configuration, else TENSAFE_SIGNING_KEY.
            recipients: age recipients (age1...); default: those of the configuration.

        Raises:
            ConfigurationError: an argument has another type.
        """
        self._output = as_uri(output_dir)
        self._signs = require_bool("TSSPCheckpointCallback.sign_checkpoints", sign_checkpoints)
        self._encrypts = require_bool("TSSPCheckpointCallback.encrypt_weights", encrypt_weights)
        self._signing_key, self._recipients = signing_key, tuple(recipients)
        self._source = self._target = CheckpointStore(self._output)
        self._records = RunLogReader(Path(RUN_LOG))

    def configure(self, config: TenSafeTrainingConfig) -> TenSafeTrainingConfig:
        """The configuration with what this callback asks for. `TenSafeTrainer` calls it.

        Raises:
            ConfigurationError: there is no key, or no recipient.
        """
        changes: dict[str, object] = {}
        if self._signs:
            key = self._signing_key or config.signing_key or os.environ.get(SIGNING_KEY_VARIABLE)
            if not key:
                raise ConfigurationError(
                    "TSSPCheckpointCallback.sign_checkpoints: there is no key: pass signing_key, or set "
                    f"{SIGNING_KEY_VARIABLE} to the file of the private key that `tensafe keygen` makes"
                )
            changes["signing_key"] = key
        if self._encrypts:
            recipients = self._recipients or tuple(config.encryption_recipients)
            if not recipients:
                raise ConfigurationError(
                    "TSSPCheckpointCallback.encrypt_weights: no one could read them: pass recipients, such as "
                    "['age1...'], the public part of the identity that `tensafe keygen` makes"
                )
            changes["encryption_recipients"] = recipients
        return dataclasses.replace(config, **changes)  # type: ignore[arg-type]

    def on_train_begin(self, trainer: RunningTrainer) -> None:
        """Refuse a folder with the checkpoints of another run, before anything is spent."""
        self._source = CheckpointStore(checkpoint_uri(trainer.config))
        self._target.check_writable()
        self._records = RunLogReader(run_folder(trainer.config) / RUN_LOG, from_end=True)
        known = {each.digest for each in self._published(trainer)}
        for name in self._target.names() if self._copies else ():
            if self._target.digest(name) not in known:
                raise ConfigurationError(
                    f"TSSPCheckpointCallback.output_dir: {self._target.uri(name)} is the checkpoint of another run: "
                    "choose another folder, or move it away"
                )

    def on_step(self, trainer: RunningTrainer, step: int) -> None:
        """Copy the checkpoints that were published since the last step."""
        for record in self._records.read():
            if isinstance(record, Saved):
                self._copy(name_in(record.uri), record.digest)

    def on_train_end(self, trainer: RunningTrainer) -> None:
        """Copy the rest: the final checkpoint, and what an interrupted run did not copy."""
        for published in self._published(trainer):
            self._copy(checkpoint_name(published), published.digest)

    @property
    def _copies(self) -> bool:
        return self._source.uri("") != self._target.uri("")

    def _published(self, trainer: RunningTrainer) -> Sequence[PublishedCheckpoint]:
        try:
            return FileLedger(run_folder(trainer.config)).read().checkpoints
        except LedgerMissing:
            return ()

    def _copy(self, name: str, digest: str) -> None:
        if not self._copies or (self._target.exists(name) and self._target.digest(name) == digest):
            return
        try:
            self._source.copy(name, digest, self._target)
        except CheckpointAbsent:  # checkpoint_dir keeps the newest ones only
            log.debug("%s was removed before it was copied", name)
