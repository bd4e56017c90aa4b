"""Images: every form of one file gives the same pixels, and a file that cannot be used is a record that is left out."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from tensorguard.data.columns import check_types
from tensorguard.data.errors import DataError
from tensorguard.data.images import ImageRecipe, decode, image_file
from tensorguard.data.memory import memory_tables
from tensorguard.data.pod_shard import prepare_pod_evaluation, prepare_pod_shard
from tensorguard.data.raw_table import Wanted
from tensorguard.data.recipe import Recipe
from tensorguard.data.rows import PixelRows
from tensorguard.data.shard import Shard
from tensorguard.data.tokenise import MAX_BATCH_ROWS, Example
from tensorguard.data.values import UnusableValue, image_of
from tensorguard.models.tasks import task_named

from .image_files import AS_IS, LEVELS, SMALL, array, file_of, noise

COLUMNS = {"image": "image", "label": "label"}
RECIPE = Recipe(columns=COLUMNS, max_length=1, labels=3, label_names=("a", "b", "c"))


def usable(values: list[Any], labels: list[Any] | None = None) -> list[bytes | None]:
    """The pixels of each record, and None for one that cannot be used."""
    records = zip(values, labels or ["b"] * len(values))
    [table] = memory_tables(list(records), Wanted({"image": "0", "label": "1"}))
    columns = {role: table.column(role).to_pylist() for role in ("image", "label")}
    faults = table.column("fault").to_pylist()
    kept = [i for i, fault in enumerate(faults) if fault is None]
    encode = task_named("ImageClassification", labels=3, label_names=("a", "b", "c")).tokeniser(SMALL, RECIPE)
    found = dict(zip(kept, encode({role: [column[i] for i in kept] for role, column in columns.items()})))
    return [found[i].inputs if isinstance(found.get(i), Example) else None for i in range(len(values))]


# Forms of a value


def test_bytes_object_and_base64_are_one_image_with_one_identity() -> None:
    content = file_of(noise())
    text = base64.b64encode(content).decode()
    forms = [content, bytearray(content), {"bytes": content, "path": None}, {"bytes": content, "path": "/etc/passwd"}]
    forms += [text, "\n".join(text[i : i + 76] for i in range(0, len(text), 76)), {"bytes": text}]
    assert {image_file(form) for form in forms} == {content}
    assert len(set(usable(forms))) == 1 and None not in usable(forms)


@pytest.mark.parametrize(
    "value",
    [None, "", b"", 7, [1, 2], {}, {"bytes": None}, "not base64!", "aGVsbG8", {"path": "image.png"}, float("nan")],
    ids=str,
)
def test_value_without_a_file_cannot_be_used(value: Any) -> None:
    assert usable([value]) == [None]


def test_path_is_never_followed(tmp_path: Path) -> None:
    place = tmp_path / "image.png"
    place.write_bytes(file_of(noise()))
    for value in (str(place), {"path": str(place)}, {"bytes": None, "path": str(place)}, {"bytes": str(place)}):
        assert usable([value]) == [None]


def test_label_is_a_number_or_a_name() -> None:
    content = file_of(noise())
    found = usable([content] * 6, ["A ", "b", "c", 2, None, "d"])
    assert [pixels is not None for pixels in found] == [True, True, True, False, False, False]


# Decoding


def test_pixels_are_rgb_by_channel_row_and_column() -> None:
    image = noise()
    assert np.array_equal(array(decode(file_of(image), AS_IS)), np.asarray(image))


@pytest.mark.parametrize("kind", ["PNG", "BMP", "GIF", "JPEG"])
def test_format_is_decoded(kind: str) -> None:
    flat = Image.new("RGB", (20, 30), (200, 100, 50))
    found = array(decode(file_of(flat, kind), AS_IS)).astype(int)
    assert abs(found - [200, 100, 50]).max() <= 3  # JPEG and the palette of GIF round


@pytest.mark.parametrize("kind", ["WEBP", "TIFF", "PPM", "ICO", "PCX", "TGA", "PDF", "EPS"])
def test_other_format_cannot_be_used(kind: str) -> None:
    assert decode(file_of(noise(), kind), SMALL) is None


def test_modes_of_files_become_rgb() -> None:
    red = Image.new("RGB", (16, 16), (255, 0, 0))
    clear = red.convert("P")
    clear.info["transparency"] = bytes(range(256))
    for content in (
        file_of(red.convert("P")),
        file_of(clear, transparency=bytes(range(256))),
        file_of(red.convert("RGBA")),
        file_of(red.convert("P"), "GIF"),
    ):
        assert array(decode(content, AS_IS)).reshape(-1, 3).tolist() == [[255, 0, 0]] * 256
    inked = array(decode(file_of(red.convert("CMYK"), "JPEG"), AS_IS)).astype(int)
    assert abs(inked - [255, 0, 0]).max() <= 3
    for mode in ("1", "L", "LA"):
        grey = array(decode(file_of(red.convert(mode)), AS_IS))
        assert (grey == grey[..., :1]).all()


def test_grey_of_16_bits_keeps_its_upper_8_bits() -> None:
    deep = np.arange(256, dtype=np.uint16).reshape(16, 16) * 256 + 77
    found = array(decode(file_of(Image.fromarray(deep)), AS_IS))
    assert np.array_equal(found, np.stack([deep >> 8] * 3, axis=-1))


def test_exif_orientation_turns_the_image_and_damaged_exif_does_not_matter() -> None:
    image = noise()
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = array(decode(file_of(image, exif=exif), AS_IS))
    assert np.array_equal(turned, np.rot90(np.asarray(image), k=-1))
    damaged = file_of(image, "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff", quality=95)
    assert decode(damaged, SMALL) == decode(file_of(image, "JPEG", quality=95), SMALL)


@pytest.mark.parametrize("orientation", range(10))
def test_every_orientation_is_turned_as_pillow_does(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = file_of(noise(size=(16, 12)), exif=exif)
    with Image.open(io.BytesIO(content)) as image:
        assert decode(content, SMALL) == decode(file_of(ImageOps.exif_transpose(image), exif=b""), SMALL)


@pytest.mark.parametrize("kind", ["GIF", "PNG"])
def test_animation_counts_as_its_first_image(kind: str) -> None:
    frames = [Image.new("RGB", (16, 16), (level, 0, 0)) for level in (255, 0, 128)]
    content = file_of(frames[0], kind, save_all=True, append_images=frames[1:])
    assert array(decode(content, AS_IS)).reshape(-1, 3).tolist() == [[255, 0, 0]] * 256


def test_shorter_edge_and_crop_leave_the_centre() -> None:
    recipe = ImageRecipe(16, Image.Resampling.BILINEAR, (16, 16), LEVELS)
    wide = Image.new("RGB", (64, 32), "black")
    wide.paste((255, 255, 255), (16, 0, 48, 32))
    assert array(decode(file_of(wide), recipe)).min() > 100
    assert recipe.pixels.arrow == pa.binary(3 * 16 * 16)
    with pytest.raises(ValueError, match="differ in size"):
        _ = ImageRecipe(16, 2, None, LEVELS).pixels


# Records do not depend on each other

values = st.one_of(
    st.integers(0, 9).map(lambda seed: file_of(noise(seed))),
    st.integers(0, 9).map(lambda seed: base64.b64encode(file_of(noise(seed), "JPEG")).decode()),
    st.integers(0, 9).map(lambda seed: file_of(noise(seed))[:100]),
    st.sampled_from([None, "", b"BM", {"path": "/etc/passwd"}, 3]),
)


@given(st.lists(st.tuples(values, st.integers(-1, 3)), min_size=1, max_size=6))
@settings(max_examples=40, deadline=None)
def test_pixels_of_a_record_are_the_same_whatever_other_records_there_are(records: list[tuple[Any, int]]) -> None:
    together = usable([value for value, _ in records], [label for _, label in records])
    assert together == [usable([value], [label])[0] for value, label in records]


# Shards and rows


def write_files(folder: Path, contents: list[bytes], labels: list[int]) -> dict[str, Path]:
    text = [base64.b64encode(content).decode() for content in contents]
    objects = [{"bytes": content, "path": f"{i}.png"} for i, content in enumerate(contents)]
    places = {name: folder / f"{name}.{name.split('-')[0]}" for name in ("parquet", "parquet-struct", "jsonl", "csv")}
    pq.write_table(pa.table({"image": contents, "label": labels}), places["parquet"])
    pq.write_table(pa.table({"image": objects, "label": labels}), places["parquet-struct"], row_group_size=5)
    lines = [json.dumps({"image": each, "label": label}) for each, label in zip(text, labels)]
    places["jsonl"].write_text("\n".join(lines))
    places["csv"].write_text("image,label\n" + "\n".join(f"{each},{label}" for each, label in zip(text, labels)))
    return places


def test_shards_have_the_same_pixels_from_every_format_without_damaged_records(make_spec: Any, tmp_path: Path) -> None:
    contents = [file_of(noise(seed)) for seed in range(20)]
    contents[3] = contents[3][:60]
    contents[7] = b"no image"
    labels = [seed % 3 for seed in range(20)]
    wanted = sorted(
        (decode(content, SMALL), label) for content, label in zip(contents, labels) if decode(content, SMALL)
    )
    for name, place in write_files(tmp_path, contents, labels).items():
        spec = make_spec(COLUMNS, labels=3, max_length=None, uri=str(place), unusable="Skip")
        tokenise = task_named("ImageClassification", labels=3).tokeniser(SMALL, Recipe.from_spec(spec))
        made = prepare_pod_shard(spec, tokenise, rank=0, workers=1, key=b"k" * 32, directory=tmp_path / name)
        shard = Shard.open(made.shard)
        assert len(wanted) == 18
        assert sorted((shard.pixels(i).tobytes(), shard.label(i)) for i in range(len(shard))) == wanted
        assert set(shard.lengths) == {1}


def test_public_images_are_recognised_in_another_format(make_spec: Any, tmp_path: Path) -> None:
    places = write_files(tmp_path, [file_of(noise(seed)) for seed in range(20)], [0] * 20)
    evaluation = {"uri": str(places["jsonl"]), "visibility": "Public"}
    spec = make_spec(COLUMNS, labels=3, max_length=None, uri=str(places["parquet-struct"]))
    spec = spec.model_validate({**spec.model_dump(exclude_unset=True), "evaluation": evaluation})
    tokenise = task_named("ImageClassification", labels=3).tokeniser(SMALL, Recipe.from_spec(spec))
    public = prepare_pod_evaluation(spec, tokenise, rank=0, directory=tmp_path)
    with pytest.raises(DataError, match="most of its records are also in spec"):
        prepare_pod_shard(spec, tokenise, rank=0, workers=1, key=b"k" * 32, directory=tmp_path, public=public)


def test_rows_are_looked_up_level_by_level_and_dummies_are_black() -> None:
    from tests.support.trainer.pipeline import make_shard

    shard = make_shard([[([5, 9, 11], 1)], [([7], 0)]], "ImageClassification")
    form = PixelRows(ImageRecipe((32, 32), 2, None, LEVELS))
    built = form.build(shard, [1, 0], 3, 1)["pixel_values"]
    table = np.frombuffer(LEVELS, np.float32).reshape(3, 256)
    for row, record in ((0, 1), (1, 0)):
        pixels = shard.pixels(record).reshape(3, 32, 32)
        assert np.array_equal(built[row].numpy(), np.stack([table[c][pixels[c]] for c in range(3)]))
    assert (built[2] == -1).all() and form.lengths == (1,)
    dummies = [form.build(shard, [0], 1, 1), form.build(shard, [0, 1], 2, 1)]
    assert np.array_equal(dummies[0]["pixel_values"][0], dummies[1]["pixel_values"][0])


def test_few_large_images_are_made_at_a_time() -> None:
    task = task_named("ImageClassification", labels=3)
    large = ImageRecipe((224, 224), 2, None, LEVELS)
    assert task.tokeniser(large, RECIPE).batch_rows == (64 << 20) // (3 * 224 * 224)
    assert task_named("SequenceClassification", labels=2).tokeniser(None, RECIPE).batch_rows == MAX_BATCH_ROWS


# The form of the data set


def test_column_of_images_needs_bytes_objects_with_bytes_or_text() -> None:
    good = [pa.binary(), pa.large_binary(), pa.string(), pa.struct([("bytes", pa.binary()), ("path", pa.string())])]
    for kind in good:
        check_types({"image": "scan"}, {"scan": kind}, "spec.dataset.columns")
    for kind in (pa.int64(), pa.list_(pa.uint8()), pa.struct([("path", pa.string())])):
        with pytest.raises(DataError, match="it needs bytes, objects with a field"):
            check_types({"image": "scan"}, {"scan": kind}, "spec.dataset.columns")


def test_images_in_memory_are_files_pil_images_or_arrays() -> None:
    image = noise()
    pixels = decode(file_of(image), AS_IS)
    column = [file_of(image), {"bytes": file_of(image)}, image, np.asarray(image), np.zeros((4, 4, 3), np.float32)]
    [table] = memory_tables([(each, 1) for each in column], Wanted({"image": "0", "label": "1"}))
    *found, none = table.column("image").to_pylist()
    assert [decode(value, AS_IS) for value in found] == [pixels] * 4
    assert none is None and table.column("fault").to_pylist() == [None] * 4 + ["NoImage"]
    grey = image_of(np.full((16, 16, 1), 9, np.uint8))
    assert (array(decode(grey, AS_IS)) == 9).all()
    with pytest.raises(UnusableValue):
        image_of(object())
