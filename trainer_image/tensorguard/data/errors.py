"""The one error of this package."""


class DataError(ValueError):
    """A data set, or the way a job asks to read it, cannot be used: one sentence that names the field and the mend.

    Raised only for what is true of the data set as a whole (its address, its schema, its being empty), never because
    of a single record, and never with a record's content in its message: errors are printed, and a record is private.
    """
