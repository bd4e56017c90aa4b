"""The one reason why a checkpoint is not verified."""

from __future__ import annotations


class NotVerified(Exception):
    """A check failed. `file`: the file of the checkpoint that shows it, or what else does. `problem`: a sentence."""

    def __init__(self, file: str, problem: str) -> None:
        super().__init__(f"{file}: {problem}")
        self.file, self.problem = file, problem


def job_text(name: object, uid: object) -> str:
    """A job as messages name it. Jobs may have the same name, and never the same UID."""
    return f"{name} (UID {uid})"
