"""Everything that there is, page by page, into the cache: before the first pass, and now and then again.

A new operator must not take what it has not been told of yet for gone. And a stream can miss a deletion, between its
list and ours or while it was broken: what a list does not have, and what is not younger than the list, is dropped.
"""

from __future__ import annotations

from tensafe_operator import names
from tensafe_operator.runtime.api_client import ApiClient
from tensafe_operator.runtime.cache import Cache
from tensafe_operator.settings import Settings

_CHILDREN = ("PrivacyLedger", "RayJob", "Pod")


async def resync(api: ApiClient, cache: Cache, settings: Settings) -> None:
    """Let the cache have all objects of ours, in the namespaces that are looked after.

    Children come first: a job that is seen is seen with all that it had.

    Raises:
        ApiUnavailable, ApiError: where the API server does not answer, or refuses.
    """
    for kind in (*_CHILDREN, "TenSafeTrainingJob"):
        selector = names.JOB_UID if kind == "Pod" else ""  # what is ours of the rest shows without labels
        for namespace in settings.namespaces or (None,):
            there: set[str] = set()
            version = 0
            async for page in api.pages(kind, namespace, selector):
                for body in page.items:
                    there.add(body["metadata"]["uid"])
                    if kind in _CHILDREN:
                        cache.put(kind, body)
                    else:
                        cache.put_job(body)
                version = page.version
            cache.keep_only(kind, there, version, namespace)
