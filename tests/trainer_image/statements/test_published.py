"""A statement on a web server is read as a stream, because the server may be an attacker's."""

from __future__ import annotations

import contextlib
import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tensafe_api.statement.contents import canonical_json
from tensafe_api.statement.document import StatementError
from tensorguard.statements.published import LIMIT_BYTES, read_statement

UNPACKED = 256 << 20


@contextmanager
def web_server(content: bytes, packed: bytes | None = None) -> Iterator[str]:
    """Serve a file at every path; yield the URL.

    Args:
        packed: what an attacker's server sends for each part that is asked for, packed by gzip.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(200, {"Content-Length": str(len(content)), "Accept-Ranges": "bytes"})

        def do_GET(self) -> None:
            if self.path.endswith("manifest.json"):
                self._answer(404, {"Content-Length": "0"})
                return
            body = content if packed is None else packed
            encoding = {} if packed is None else {"Content-Encoding": "gzip"}
            self._answer(206 if "Range" in self.headers else 200, {"Content-Length": str(len(body)), **encoding})
            with contextlib.suppress(OSError):  # the reader has enough
                self.wfile.write(body)

        def _answer(self, status: int, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.slow
def test_statement_on_a_web_server_is_read(statement: dict[str, Any]) -> None:
    with web_server(canonical_json(statement)) as url:
        assert read_statement(f"{url}/final") == (statement, [])


@pytest.mark.slow
def test_packed_file_is_not_unpacked_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    unpacked: list[int] = []
    monkeypatch.setattr("aiohttp.StreamReader.feed_data", _counted(unpacked))
    with (
        web_server(bytes(LIMIT_BYTES), packed=gzip.compress(bytes(UNPACKED))) as url,
        pytest.raises(StatementError, match=f"has more than {LIMIT_BYTES >> 20} MiB, and is not read"),
    ):
        read_statement(f"{url}/final")
    assert LIMIT_BYTES < sum(unpacked) < UNPACKED / 8


def _counted(sizes: list[int]) -> Any:
    from aiohttp import StreamReader

    feed = StreamReader.feed_data

    def counted(self: StreamReader, data: bytes, *rest: Any) -> Any:
        sizes.append(len(data))
        return feed(self, data, *rest)

    return counted


@pytest.mark.parametrize("value", ["NaN", "1e999", '"\\ud800"'])
def test_value_that_no_canonical_json_has_is_refused(value: str, tmp_path: Path) -> None:
    (tmp_path / "statement.json").write_text(f'{{"lineage":{value}}}')
    with pytest.raises(StatementError, match="is not canonical JSON"):
        read_statement(str(tmp_path))
