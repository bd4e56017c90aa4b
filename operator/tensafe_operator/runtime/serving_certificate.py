"""The certificate with which this process serves TLS, loaded again when its files change.

The files are `tls.crt` and `tls.key` in one folder, as a mounted Secret of type kubernetes.io/tls has them. The kubelet
replaces both some time after the Secret has changed. Connections that are open keep the certificate that they have.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

from tensafe_operator.runtime.errors import ConfigurationError

POLL_SECONDS = 10.0
log = logging.getLogger(__name__)


class ServingCertificate:
    """The certificate in a folder.

    Raises:
        ConfigurationError: if the folder has no certificate with its key. The message has no name of a setting.
    """

    def __init__(self, folder: Path) -> None:
        self._files = folder / "tls.crt", folder / "tls.key"
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        """For the server. TLS 1.2 and newer; clients need no certificate."""
        try:
            self._loaded = self._content()
            self._load()
        except OSError as error:  # ssl.SSLError is one
            raise ConfigurationError(
                f"no certificate with its key in tls.crt and tls.key ({_reason(error)})"
            ) from error

    async def reload_when_changed(self) -> None:
        """Load the certificate again when its files have changed, until cancelled."""
        refused = None
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                found = self._content()
                if found in (self._loaded, refused):
                    continue
                self._load()
                self._loaded, refused = found, None
                log.info("the certificate of the metrics was loaded again")
            except OSError as error:
                refused = found if isinstance(error, ssl.SSLError) else None
                log.warning("the certificate of the metrics stays the old one: the new one fails (%s)", _reason(error))

    def _content(self) -> tuple[bytes, ...]:
        return tuple(path.read_bytes() for path in self._files)

    def _load(self) -> None:
        """Load the files, after a try: a context that refuses a key has already lost its old certificate."""
        for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self.context):
            context.load_cert_chain(*self._files, password="")  # an encrypted key fails, without asking a terminal


def _reason(error: OSError) -> str:
    """What is wrong, without the content of a file."""
    found = error.reason if isinstance(error, ssl.SSLError) else error.strerror
    return found or type(error).__name__
