"""Compressed jsonl, csv and tsv: read as streams, with the same records and errors as the uncompressed file."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tensorguard.data import keys, listing
from tensorguard.data.compression import CorruptArchive, compression_of, decompressed
from tensorguard.data.errors import DataError, UnreadableDataError
from tensorguard.data.listing import inspect
from tensorguard.data.pod_shard import prepare_pod_shard
from tensorguard.data.raw_table import Wanted
from tensorguard.data.recipe import Recipe
from tensorguard.data.shard import Shard
from tests.support.trainer.data_files import TEXT_LABEL, records_at, rows_at
from tests.support.trainer.tokenising import tokeniser

CONTENT = {
    "jsonl": b'{"text": "a b", "label": 1}\n\n{"text": "one\\ntwo", "label": 0}\n{"text": "c"}',
    "csv": b'text,label\n"a, b",1\n\n"one\ntwo",0\n\xff,1\n',
    "tsv": b'text\tlabel\na "b\t1\n\nc\t0\n\xff\t1\n',
}


def zstd(content: bytes) -> bytes:
    return pa.compress(content, "zstd", asbytes=True)  # type: ignore[no-any-return]


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".zst": zstd,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}
CHECKSUMMED = bytes.fromhex("28b52ffd240f790000746578742c6c6162656c0a612c310a03a66228")
"""The rows "text,label" and "a,1" as the command `zstd` writes them, with a checksum of the content."""


def error_at(path: Path) -> DataError:
    with pytest.raises(DataError) as caught:
        rows_at(path)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("ending", COMPRESS)
@pytest.mark.parametrize("name", CONTENT)
def test_compressed_file_has_the_rows_and_record_keys_of_the_uncompressed_file(
    tmp_path: Path, name: str, ending: str
) -> None:
    (tmp_path / f"plain.{name}").write_bytes(CONTENT[name])
    (tmp_path / f"d.{name}{ending}").write_bytes(COMPRESS[ending](CONTENT[name]))
    expected, found = rows_at(tmp_path / f"plain.{name}"), rows_at(tmp_path / f"d.{name}{ending}")
    assert found == expected
    assert len(found) > 2

    def record_keys(path: Path) -> list[bytes]:
        rows = records_at(path)
        return [keys.record_key(b"k" * 16, keys.content_of([row["label"], row["text"]])) for row in rows]

    assert record_keys(tmp_path / f"plain.{name}") == record_keys(tmp_path / f"d.{name}{ending}")


@pytest.mark.parametrize("ending", COMPRESS)
def test_archive_of_several_members_is_read_to_its_end(tmp_path: Path, ending: str) -> None:
    """Tools that append to an archive write one member after another."""
    first, second = b"text,label\na,1\n", b"b,0\n"
    (tmp_path / f"d.csv{ending}").write_bytes(COMPRESS[ending](first) + COMPRESS[ending](second))
    assert [row["text"] for row in rows_at(tmp_path / f"d.csv{ending}")] == ["a", "b"]


@pytest.mark.parametrize("ending", COMPRESS)
def test_damaged_second_member_is_refused(tmp_path: Path, ending: str) -> None:
    """Otherwise its rows would be missing without an error."""
    for damage in (b"\x07", b"\x07" * 100):
        second = damage + COMPRESS[ending](b"b,0\n")[len(damage) :]
        (tmp_path / f"d.csv{ending}").write_bytes(COMPRESS[ending](b"text,label\na,1\n") + second)
        assert "archive is corrupt" in str(error_at(tmp_path / f"d.csv{ending}"))


def test_zeros_between_the_streams_of_an_archive_are_padding(tmp_path: Path) -> None:
    first, second = lzma.compress(b"text,label\na,1\n"), lzma.compress(b"b,0\n")
    (tmp_path / "d.csv.xz").write_bytes(first + b"\0" * 8 + second + b"\0" * 4)
    assert [row["text"] for row in rows_at(tmp_path / "d.csv.xz")] == ["a", "b"]


@pytest.mark.parametrize("ending", COMPRESS)
@pytest.mark.parametrize("name", CONTENT)
def test_truncated_archive_is_refused_by_name(tmp_path: Path, name: str, ending: str) -> None:
    path = tmp_path / f"claims.{name}{ending}"
    path.write_bytes(COMPRESS[ending](CONTENT[name] + b"x" * 10_000)[:-3])
    error = error_at(path)
    assert isinstance(error, UnreadableDataError)
    assert str(error) == (
        f"spec.dataset.uri: cannot read {path}: the {ending} archive is truncated; create the file again"
    )


@pytest.mark.parametrize("ending", COMPRESS)
def test_file_that_is_not_an_archive_is_refused_without_its_content(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"d.jsonl{ending}"
    path.write_bytes(b"Jane Doe has HIV " * 10)
    error = error_at(path)
    assert str(error).endswith(f"{path}: the {ending} archive is corrupt; create the file again")
    assert "Jane" not in str(error)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("name", CONTENT)
@pytest.mark.parametrize("ending", COMPRESS)
def test_archive_without_its_ending_is_refused_by_name(tmp_path: Path, name: str, ending: str, first: bool) -> None:
    plain, archive = ("2", "1") if first else ("1", "2")
    (tmp_path / f"{plain}.{name}").write_bytes(CONTENT[name])
    (tmp_path / f"{archive}.{name}").write_bytes(COMPRESS[ending](CONTENT[name]))
    assert str(error_at(tmp_path)).endswith(
        f"{tmp_path}/{archive}.{name} is a {ending} archive, not {name}: decompress it, or add {ending} to its name"
    )


@pytest.mark.parametrize("byte", [b'"', b"\n", b"\\", b"\t"])
@pytest.mark.parametrize("name", CONTENT)
def test_archive_is_refused_by_name_whatever_faults_its_bytes_have_as_text(
    tmp_path: Path, name: str, byte: bytes
) -> None:
    """The header of a .gz archive holds the time at which it was written: here four quotes, newlines and so on."""
    (tmp_path / f"1.{name}").write_bytes(gzip.compress(CONTENT[name], mtime=int.from_bytes(byte * 4, "little")))
    assert str(error_at(tmp_path)).endswith(
        f"1.{name} is a .gz archive, not {name}: decompress it, or add .gz to its name"
    )


def test_archive_in_an_archive_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl.gz").write_bytes(gzip.compress(CONTENT["jsonl"]))
    (tmp_path / "2.jsonl.gz").write_bytes(gzip.compress(gzip.compress(CONTENT["jsonl"])))
    assert str(error_at(tmp_path)).endswith("2.jsonl.gz is a .gz archive, not jsonl: compress it only once")


@pytest.mark.parametrize("start", [b"BZh", b"BZh91AY&SY", b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\0"])
def test_file_that_only_starts_like_an_archive_is_not_called_one(tmp_path: Path, start: bytes) -> None:
    (tmp_path / "1.csv").write_bytes(start + b" note,text,label\nx,a,1\n")
    assert rows_at(tmp_path / "1.csv") == [{"text": "a", "label": "1"}]
    (tmp_path / "1.jsonl").write_bytes(start + b" note\n" + CONTENT["jsonl"])
    assert str(error_at(tmp_path / "1.jsonl")).endswith("1.jsonl, line 1: it is not JSON: correct the line")


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".xz"])
def test_content_that_fails_the_checksum_of_its_archive_is_refused(tmp_path: Path, ending: str) -> None:
    """The fault is found at the end of the file, after rows were read: the data set is refused all the same."""
    archive = bytearray(COMPRESS[ending](CONTENT["csv"] * 50))
    archive[len(archive) // 2] ^= 0xFF
    (tmp_path / f"d.csv{ending}").write_bytes(archive)
    assert "archive is corrupt" in str(error_at(tmp_path / f"d.csv{ending}"))


def test_zstd_content_that_fails_its_checksum_is_refused(tmp_path: Path) -> None:
    (tmp_path / "d.csv.zst").write_bytes(CHECKSUMMED)
    assert rows_at(tmp_path / "d.csv.zst") == [{"text": "a", "label": "1"}]
    (tmp_path / "d.csv.zst").write_bytes(CHECKSUMMED.replace(b"a,1", b"a,0"))
    assert "archive is corrupt" in str(error_at(tmp_path / "d.csv.zst"))


def test_zstd_frame_that_needs_a_large_window_is_refused(tmp_path: Path) -> None:
    """A frame's header can demand gigabytes (`zstd --long=31`)."""
    header = b"\x28\xb5\x2f\xfd" + b"\x00" + bytes([(31 - 10) << 3]) + b"\x01\x00\x00"
    (tmp_path / "d.csv.zst").write_bytes(header)
    assert "window is above 128 MiB; compress it without --long" in str(error_at(tmp_path / "d.csv.zst"))


def test_missing_column_has_the_same_error_in_a_compressed_file(tmp_path: Path) -> None:
    for name, content in (("csv", b"texts,label\na,1\n"), ("jsonl", b'{"texts": "a", "label": 1}\n')):
        (tmp_path / f"d.{name}").write_bytes(content)
        plain = str(error_at(tmp_path / f"d.{name}"))
        (tmp_path / f"d.{name}.zst").write_bytes(zstd(content))
        assert str(error_at(tmp_path / f"d.{name}.zst")) == plain.replace(f"d.{name}", f"d.{name}.zst")


def test_archive_of_an_empty_file_has_no_columns(tmp_path: Path) -> None:
    for name in CONTENT:
        (tmp_path / f"d.{name}.gz").write_bytes(gzip.compress(b""))
        assert "has no column 'text'" in str(error_at(tmp_path / f"d.{name}.gz"))


def test_compressed_files_are_not_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "FRAGMENT_BYTES", 10)
    (tmp_path / "d.jsonl.zst").write_bytes(zstd(CONTENT["jsonl"] * 20))
    _, fragments = inspect(str(tmp_path / "d.jsonl.zst"), Wanted(TEXT_LABEL), None, "file", {})
    assert [(fragment["part"], fragment["parts"]) for fragment in fragments] == [(0, 1)]


def test_compressed_parquet_and_unsupported_archives_are_refused(tmp_path: Path) -> None:
    (tmp_path / "d.parquet.gz").write_bytes(gzip.compress(b"PAR1"))
    assert "compresses inside the file: decompress it" in str(error_at(tmp_path / "d.parquet.gz"))
    for archive in (".zip", ".lz4", ".tar.gz", ".snappy"):
        folder = tmp_path / archive
        folder.mkdir()
        (folder / "a.csv").write_bytes(CONTENT["csv"])
        (folder / f"b.csv{archive}").write_bytes(b"PK")
        refused = f"b.csv{archive} is a {archive.removesuffix('.gz')} archive, which cannot be read: decompress it"
        assert refused in str(error_at(folder))


@pytest.mark.slow
@pytest.mark.parametrize("ending", COMPRESS)
def test_memory_does_not_grow_with_the_decompressed_size(tmp_path: Path, ending: str) -> None:
    """64 MiB of rows in an archive of a few kilobytes: a bomb for a reader that decompresses the file as a whole."""
    line = b"a" * 1000 + b"\t1\n"
    path = tmp_path / f"d.tsv{ending}"
    path.write_bytes(COMPRESS[ending](b"text\tlabel\n" + line * (1 << 16)))
    assert path.stat().st_size < 1 << 20
    source, [fragment] = inspect(str(path), Wanted(TEXT_LABEL), None, "file", {})
    next(source.tables(**fragment))  # so that its imports are not counted
    before = pa.default_memory_pool().bytes_allocated()
    arrow_peak = rows = 0
    tracemalloc.start()
    try:
        for table in source.tables(**fragment):
            rows += len(table)
            arrow_peak = max(arrow_peak, pa.default_memory_pool().bytes_allocated() - before)
        _, python_peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert rows == 1 << 16
    assert python_peak + arrow_peak < 32 << 20


def test_lost_connection_is_not_reported_as_a_corrupt_archive() -> None:
    class Lost(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise ConnectionError("the store closed the connection")

    for ending in COMPRESS:
        with pytest.raises(ConnectionError), decompressed(Lost(), ending) as stream:
            stream.read()
    with pytest.raises(CorruptArchive), decompressed(io.BytesIO(b"none"), ".zst") as stream:
        stream.read()


@pytest.mark.parametrize(("alias", "ending"), [(".gzip", ".gz"), (".zstd", ".zst"), (".bzip2", ".bz2")])
def test_long_endings_in_a_folder_are_read_too(tmp_path: Path, alias: str, ending: str) -> None:
    (tmp_path / "a.csv").write_bytes(b"text,label\na,1\n")
    (tmp_path / f"b.csv{alias}").write_bytes(COMPRESS[ending](b"text,label\nb,1\n"))
    assert [row["text"] for row in rows_at(tmp_path)] == ["a", "b"]


def test_endings_are_recognised_in_any_case() -> None:
    assert [compression_of(name) for name in ("a.csv.GZ", "a.csv.zst", "a.csv", "gz", "a.zip")] == [
        ".gz",
        ".zst",
        None,
        None,
        None,
    ]


def test_pod_makes_the_same_shard_from_a_compressed_data_set(
    make_spec: Any, make_tokenizer: Any, tmp_path: Path
) -> None:
    content = b"".join(b'{"t": "a b %s"}\n' % word for word in (b"one", b"two", b"three", b"c", b"d"))
    found = []
    for name, archive in (
        ("plain.jsonl", content),
        ("notes.jsonl.gz", gzip.compress(content)),
        ("n.jsonl.zst", zstd(content)),
    ):
        (tmp_path / name).write_bytes(archive)
        spec = make_spec({"text": "t"}, uri=str(tmp_path / name))
        tokenise = tokeniser(make_tokenizer(), Recipe.from_spec(spec))
        made = [
            prepare_pod_shard(spec, tokenise, rank=rank, workers=2, key=b"k" * 16, directory=tmp_path / name[:2])
            for rank in range(2)
        ]
        found.append([(Shard.open(each.shard)._batch, each.empty, each.digest) for each in made])
    for other in found[1:]:
        assert [(empty, digest) for _, empty, digest in other] == [(empty, digest) for _, empty, digest in found[0]]
        assert all(batch.equals(expected) for (batch, _, _), (expected, _, _) in zip(other, found[0]))
