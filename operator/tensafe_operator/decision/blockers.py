"""Blocker: what keeps a job from running, as fields. It becomes text where a condition or a screen shows it."""

from __future__ import annotations

from dataclasses import dataclass

from tensafe_api.fixes import Fix
from tensafe_api.reasons import Reason
from tensafe_api.resources.status import BlockerStatus
from tensafe_api.sanitize import clean

LONGEST = 400
"""How many characters of another component's message are repeated."""


@dataclass(frozen=True)
class Blocker:
    """What keeps a job from running.

    Attributes:
        object: kind and name of the object that is blocked; empty where the message names it.
        message: what happened, in the words of the component that reports it.
        fix: what the user can do; None: the fix of the reason.
    """

    reason: Reason
    object: str
    message: str
    fix: Fix | None = None

    @property
    def what(self) -> str:
        """What happened, as the start of a sentence. Users write some of the texts, such as the name of an image."""
        return clean(": ".join(filter(None, (self.object, self.message)))).rstrip(" .")

    @property
    def sentence(self) -> str:
        """What happened, and what to do."""
        return f"{self.what}: {self.fix.text if self.fix else self.reason.fix}"

    def in_status(self) -> BlockerStatus:
        """The blocker as the status stores it."""
        fix = self.fix.value if self.fix else None
        return BlockerStatus(
            reason=self.reason.value, object=clean(self.object) or None, message=clean(self.message), fix=fix
        )

    @classmethod
    def stored(cls, status: BlockerStatus | None) -> Blocker | None:
        """The blocker that a status stores; None without one, or for a reason that this version does not know."""
        reason = Reason.named(status.reason) if status is not None else None
        if status is None or reason is None:
            return None
        return cls(reason, status.object or "", status.message, Fix.named(status.fix))
