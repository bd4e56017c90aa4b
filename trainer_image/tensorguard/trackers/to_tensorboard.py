"""TensorBoard: one file of events for each export.

The file is written record by record, without `SummaryWriter`, whose file names hold the name of the host.

Environment: TENSORBOARD_LOGGING_DIR, the folder of the file. Default: `tensorboard` in the run's folder.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.summary.writer.record_writer import RecordWriter

from tensorguard.trackers.figures import Point, grouped, public_time
from tensorguard.trackers.tracker import Adapters, Attachment, Outcome, RunInfo

_FILE_VERSION = "brain.Event:2"
"""The first record of every file of events."""


class TensorBoardTracker:
    """A folder of TensorBoard."""

    adapters: Adapters = "false"

    def __init__(self, environment: Mapping[str, str], directory: Path) -> None:
        """Refer to a folder, without creating it. directory: the run's folder."""
        given = environment.get("TENSORBOARD_LOGGING_DIR")
        self._folder = Path(given).expanduser().absolute() if given else directory.absolute() / "tensorboard"

    @property
    def destination(self) -> str:
        return str(self._folder)

    def open(self, run: RunInfo, known: str | None) -> str:
        self._folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads the files of a folder in the order of their names.
        seconds, nanoseconds = divmod(time.time_ns(), 10**9)
        name = f"events.out.tfevents.{seconds:010}.{nanoseconds:09}"
        # Unbuffered: the records of a killed export are complete.
        self._file = os.fdopen(os.open(self._folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb", 0)
        self._writer = RecordWriter(self._file)
        self._write(Event(wall_time=public_time(time.time()), file_version=_FILE_VERSION))
        if known is None:
            self._write_text("config", f"```json\n{json.dumps(dict(run.config), indent=1)}\n```", 0, time.time())
        return self.destination

    def send(self, points: Sequence[Point]) -> None:
        for point in points:
            values = [Summary.Value(tag=grouped(key), simple_value=value) for key, value in point.figures.items()]
            self._write(Event(wall_time=point.time, step=point.step, summary=Summary(value=values)))

    def attach(self, attachment: Attachment) -> None:
        for name, content in attachment.files.items():
            if name.endswith(".md"):
                self._write_text(attachment.name, content.decode(), attachment.step, time.time())

    def close(self, outcome: Outcome) -> None:
        self._file.close()

    def _write_text(self, tag: str, text: str, step: int, seconds: float) -> None:
        metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode()])
        value = Summary.Value(tag=f"{tag}/text_summary", metadata=metadata, tensor=tensor)
        self._write(Event(wall_time=public_time(seconds), step=step, summary=Summary(value=[value])))

    def _write(self, event: Event) -> None:
        self._writer.write(event.SerializeToString())
