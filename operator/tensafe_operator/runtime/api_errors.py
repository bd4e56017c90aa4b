"""What the API server answers to a request that it does not carry out, as exceptions.

A refusal is an `ApiError` with the server's message. Where the same request may succeed later, also without any answer,
it is an `ApiUnavailable`.
"""

from __future__ import annotations

import re

from tensafe_operator.runtime.objects import Manifest

FORBIDDEN, NOT_FOUND, CONFLICT, INVALID = 403, 404, 409, 422
_CONTENT_TOO_LARGE, _TOO_MANY = 413, 429
_FAILED_WEBHOOK = "failed calling webhook"
"""How the API server reports, with HTTP status 500, an admission webhook that fails."""
_TOO_LARGE = ("etcdserver: request is too large", "trying to send message larger than max")
"""How it reports, with the same status, an object that is too large for etcd."""
_STRICT = re.compile(r': strict decoding error: (unknown field "[^"]+"(?:, unknown field "[^"]+")*)$')
_UNKNOWN_FIELD = re.compile('unknown field "([^"]{1,300})"')
"""How it reports, after the whole object, fields of a patched object that it does not know."""
_BY_POLICY = re.compile("denied (the )?request")
"""How the API server repeats the word of a ValidatingAdmissionPolicy or of a webhook."""
_LONGEST_NAMES = 1024
"""The names of the object, of the policy and of its binding precede that."""


class ApiError(Exception):
    """The API server refuses the request. `status` is the HTTP status, `str()` the server's message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class AlreadyExists(ApiError):
    """An object of this name exists. A conflict without that is for instance of a quota that others use, too."""


class UnknownKind(ApiError):
    """The API server does not serve the kind."""


class UnknownFields(ApiError):
    """The API server does not know fields of the object, and would drop them. `str()` names them."""


class ApiUnavailable(Exception):
    """The API server does not answer, or is overloaded: the same request may succeed later.

    Attributes:
        webhook: whether an admission webhook failed or may hang, so that only requests like this one are affected.
    """

    def __init__(self, message: str, *, webhook: bool = False) -> None:
        super().__init__(message)
        self.webhook = webhook


def error_of(status: int, document: Manifest, message: str) -> ApiError | ApiUnavailable:
    """The error for an answer with an HTTP status of 400 or more.

    Args:
        document: the body. One about a missing object names it, and one about an unknown kind does not.
        message: the server's own, from the body.
    """
    for_etcd = status >= 500 and any(each in message for each in _TOO_LARGE)
    if status == _CONTENT_TOO_LARGE or for_etcd:
        return ApiError(status, message)  # it would be refused again
    if status == _TOO_MANY or status >= 500:
        answered = f"the API server answers with HTTP status {status} ({message})"
        return ApiUnavailable(answered, webhook=_FAILED_WEBHOOK in message)
    if document.get("reason") == "AlreadyExists":
        return AlreadyExists(status, message)
    of_policy = _BY_POLICY.search(message[:_LONGEST_NAMES]) is not None
    if status == INVALID and not of_policy and (strict := _STRICT.search(message)):
        return UnknownFields(status, ", ".join(_UNKNOWN_FIELD.findall(strict[1])))
    if status == NOT_FOUND and not (document.get("details") or {}).get("name"):
        return UnknownKind(status, message)
    return ApiError(status, message)
