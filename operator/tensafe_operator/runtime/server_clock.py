"""The time of the API server, for a process whose own clock is wrong.

Objects have the times of the API server and of other nodes, and are compared with the present time. By a clock that is
an hour ahead, every attempt has stalled, and every deadline has passed. Each answer of the API server has its time, in
whole seconds, and took an unknown time to arrive. So small differences are ignored.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime

TOLERANCE_SECONDS = 30.0
"""A smaller difference is not corrected."""
LONGEST_ANSWER_SECONDS = 5.0
"""The time in an answer that took longer says little."""
_STEP_SECONDS = 5.0
"""A correction is kept while it is so near to the newest difference."""
log = logging.getLogger(__name__)


class ServerClock:
    """The time, by the clock of the API server where the own clock differs much.

    Args:
        clock: the own clock, in seconds since the epoch.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._ahead = 0.0

    @property
    def ahead(self) -> float:
        """For how many seconds the own clock is ahead of that of the API server; 0 for a small difference."""
        return self._ahead

    def now(self) -> float:
        """The time in seconds since the epoch."""
        return self._clock() - self._ahead

    def by_own_clock(self, when: float) -> float:
        """What the own clock shows at a time in seconds since the epoch."""
        return when + self._ahead

    def heard(self, date: str | None, seconds: float) -> None:
        """Take the time in an answer of the API server.

        Args:
            date: the answer's header `Date`.
            seconds: how long the request took until then.
        """
        try:
            sent = parsedate_to_datetime(date or "").timestamp()
        except ValueError:
            return
        if seconds > LONGEST_ANSWER_SECONDS:
            return
        found = self._clock() - sent
        ahead = found if abs(found) > TOLERANCE_SECONDS else 0.0
        if ahead and self._ahead and abs(ahead - self._ahead) < _STEP_SECONDS:
            return
        if bool(ahead) != bool(self._ahead):
            log.warning(
                "the clock of this machine is %+.0f s from that of the API server%s",
                found,
                ", whose time is used: correct it" if ahead else ", and is used again",
            )
        self._ahead = ahead
