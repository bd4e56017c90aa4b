"""How a log that comes in chunks becomes lines: a pod may write one without any end of line."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from tensafe_kubectl.api import LONGEST_LINE, Api, split_lines
from tensafe_kubectl.reading import PODS


class Answer:
    """The answer of an API server whose body has these chunks."""

    status = 200

    def __init__(self, chunks: list[bytes]) -> None:
        self.chunks = chunks

    def stream(self, _size: int) -> Iterator[bytes]:
        return iter(self.chunks)

    def close(self) -> None:
        pass


def log_of(chunks: list[bytes]) -> list[bytes]:
    pool = SimpleNamespace(request=lambda *_, **__: Answer(chunks))
    configuration = SimpleNamespace(host="https://cluster", auth_settings=dict)
    http = SimpleNamespace(configuration=configuration, rest_client=SimpleNamespace(pool_manager=pool))
    return list(Api(http, "clinic").log(PODS, "clinic", "worker-0", {"follow": "true"}))


def test_long_line_of_a_log_comes_in_parts() -> None:
    lines = log_of([b"first\nx"] + [b"x" * 65536] * 40 + [b"\nlast"])
    assert lines[0] == b"first" and lines[-1] == b"last"
    assert [len(line) for line in lines[1:-1]] == [LONGEST_LINE, LONGEST_LINE, 40 * 65536 + 1 - 2 * LONGEST_LINE]


def test_line_of_the_longest_length_is_not_cut() -> None:
    assert list(split_lines([b"abc", b"d\nabcde\n"], longest=4)) == [b"abcd", b"abcd", b"e"]


@given(st.lists(st.binary(max_size=6) | st.sampled_from([b"\n", b"a\nb", b"\n\n"])), st.none() | st.integers(1, 8))
def test_chunks_do_not_change_the_lines(chunks: list[bytes], longest: int | None) -> None:
    *lines, rest = b"".join(chunks).split(b"\n")
    lines += [rest] if rest else []
    if longest is not None:
        lines = [line[at : at + longest] for line in lines for at in range(0, len(line) or 1, longest)]
    assert list(split_lines(chunks, longest)) == lines
