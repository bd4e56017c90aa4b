"""Mistakes in what becomes of an image: it depends on other records, or more is read or shown than its file."""

from __future__ import annotations

from mutations.mutation import TRAINER, Edit, Mutation

_IMAGES = TRAINER + "data/images.py"
_TESTS = "tests/trainer_image/data/test_images.py::"
_HOSTILE = "tests/trainer_image/data/test_hostile_images.py::"

IMAGES = (
    Mutation(
        "images are normalised by the mean of the batch",
        (
            Edit(
                TRAINER + "data/rows.py",
                'return {"pixel_values": torch.from_numpy(self.recipe.table[channels, levels]).to(self.dtype)}',
                "values = torch.from_numpy(self.recipe.table[channels, levels]).to(self.dtype)\n"
                '        return {"pixel_values": values - values.mean(dim=0)}',
            ),
        ),
        (_TESTS + "test_rows_are_looked_up_level_by_level_and_dummies_are_black",),
    ),
    Mutation(
        "a damaged image takes the pixels of its neighbour",
        (
            Edit(
                TRAINER + "models/tasks/image_classification.py",
                'return [self._example(*record) for record in zip(records["image"], records["label"])]',
                "found: list[Example | None] = []\n"
                '        for record in zip(records["image"], records["label"]):\n'
                "            found.append(self._example(*record) or (found[-1] if found else None))\n"
                "        return found",
            ),
        ),
        (_TESTS + "test_pixels_of_a_record_are_the_same_whatever_other_records_there_are",),
    ),
    Mutation(
        "a path in a record is followed",
        (
            Edit(
                _IMAGES,
                'value = value.get("bytes")',
                'value = value.get("bytes") or (open(value["path"], "rb").read() if value.get("path") else None)',
            ),
        ),
        (_TESTS + "test_path_is_never_followed",),
    ),
    Mutation(
        "a decompression bomb is decoded",
        (Edit(_IMAGES, "if _too_large(*image.size):", "if False:"),),
        (_HOSTILE + "test_decompression_bomb_is_refused_by_its_header",),
    ),
    Mutation(
        "Pillow's warnings are shown",
        (Edit(_IMAGES, 'warnings.simplefilter("ignore")', 'warnings.simplefilter("always")'),),
        (_HOSTILE + "test_decompression_bomb_is_refused_by_its_header",),
    ),
    Mutation(
        "the rest of a truncated image is grey",
        (Edit(_IMAGES, "ImageFile.LOAD_TRUNCATED_IMAGES = False", "ImageFile.LOAD_TRUNCATED_IMAGES = True"),),
        (_HOSTILE + "test_truncated_file_cannot_be_used_and_shows_nothing",),
    ),
)
