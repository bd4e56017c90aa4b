"""The errors of this package."""

from typing import ClassVar

from tensafe_api.reasons import Reason


class DataError(ValueError):
    """A data set, or the way a job asks to read it, cannot be used: one sentence that names the field and the mend.

    Raised only for what is true of the data set as a whole (its address, its schema, its being empty), never because
    of a single record, and never with a record's content in its message: errors are printed, and a record is private.
    """

    reason: ClassVar[Reason] = Reason.DATASET_UNSUITABLE


class Unreadable(DataError):
    """The files themselves cannot be had: a wrong address, no permission, another format than its name says."""

    reason: ClassVar[Reason] = Reason.DATASET_UNREADABLE
