"""The errors of this package."""

from typing import ClassVar

from tensafe_api.reasons import Reason


class DataError(ValueError):
    """A data set cannot be used as the job asks: one sentence that names the field and the fix.

    Raised only for what is true of the data set as a whole (its address, its schema, that it is empty), or where a
    fault makes other records unreadable (a quote in a csv file that is never closed). A record that is unusable by
    itself never raises it. The message never holds a record's content: errors are printed, and a record is private.
    """

    reason: ClassVar[Reason] = Reason.DATASET_UNSUITABLE


class UnreadableDataError(DataError):
    """The files cannot be read: a wrong address, no permission, a corrupt archive, or another format than named."""

    reason: ClassVar[Reason] = Reason.DATASET_UNREADABLE
