"""Mistakes in reading records and assigning them to units."""

from __future__ import annotations

from mutations.mutation import TRAINER, Edit, Mutation

DATA: tuple[Mutation, ...] = (
    Mutation(
        "Ray gives the tables of several files one type",
        (
            Edit(
                TRAINER + "data/read.py",
                "    for fragment in fragments.to_pylist():\n"
                "        yield from map(packed, source.tables(**fragment))\n",
                "    tables = [table for each in fragments.to_pylist() for table in source.tables(**each)]\n"
                '    yield packed(pa.concat_tables(tables, promote_options="permissive"))\n',
            ),
        ),
        ("tests/trainer_image/data/test_files.py::test_tables_of_files_with_other_types_stay_apart",),
    ),
    Mutation(
        "the id of a user is the address of an object",
        (
            Edit(
                TRAINER + "data/keys.py",
                "return UNREADABLE_USER if _ADDRESS.search(text) else text",
                "return text",
            ),
        ),
        ("tests/trainer_image/data/test_shards.py::test_ids_without_a_text_of_their_own_are_one_user",),
    ),
    Mutation(
        "the types of other records change which records of a user are kept",
        (
            Edit(
                TRAINER + "data/keys.py",
                "    return int(value) if isinstance(value, float) and value.is_integer() else value\n",
                "    return value\n",
            ),
        ),
        ("tests/trainer_image/data/test_shards.py::test_content_is_the_same_whatever_types_other_records_give_it",),
    ),
    Mutation(
        "the values of nested objects are formatted again at each level",
        (Edit(TRAINER + "data/keys.py", "key=lambda item: repr(item[0])", "key=str"),),
        ("tests/trainer_image/data/test_shards.py::test_value_is_not_formatted_to_order_the_fields_around_it",),
    ),
    Mutation(
        "a wrong quote makes one record of several users' records",
        (Edit(TRAINER + "data/formats/csv.py", "csv.reader(rows, strict=True)", "csv.reader(rows._handle)"),),
        (
            "tests/trainer_image/data/test_csv.py::test_csv_that_escapes_quotes_with_backslashes_is_refused_with_its_line",
            "tests/trainer_image/data/test_csv.py::test_csv_whose_stray_quotes_pair_up_is_refused",
        ),
    ),
    Mutation(
        "a csv file whose writer does not quote is read",
        (Edit(TRAINER + "data/formats/csv.py", """if '"' in text and not""", "if False and not"),),
        ("tests/trainer_image/data/test_csv.py::test_csv_whose_writer_does_not_quote_is_refused",),
    ),
    Mutation(
        "a carriage return in a csv value makes one record several units",
        (Edit(TRAINER + "data/formats/csv.py", "if not rows.ends_as_before(text):", "if False:"),),
        ("tests/trainer_image/data/test_csv.py::test_csv_of_pandas_with_a_carriage_return_in_a_value_is_refused",),
    ),
    Mutation(
        "a tsv value of several lines, which its writer quotes, makes one record several units",
        (Edit(TRAINER + "data/formats/csv.py", "_OPEN_QUOTE.search(text)", "False"),),
        ("tests/trainer_image/data/test_csv.py::test_no_record_of_a_tsv_file_becomes_several",),
    ),
    Mutation(
        "a tsv value of several lines, whose quotes are escaped, makes one record several units",
        (Edit(TRAINER + "data/formats/csv.py", r"""|(?:[^"\\\t]++|\\.)*+)(?![^\t])""", r""")(?![^\t])"""),),
        ("tests/trainer_image/data/test_csv.py::test_tsv_with_a_value_of_several_lines_is_refused_with_its_line",),
    ),
    Mutation(
        "a newline that a tsv file escapes makes one record several units",
        (
            Edit(
                TRAINER + "data/formats/csv.py",
                "and any(map(_ends_in_escape,",
                "and False and any(map(_ends_in_escape,",
            ),
        ),
        ("tests/trainer_image/data/test_csv.py::test_no_record_of_a_tsv_file_becomes_several",),
    ),
    Mutation(
        "a separator in a text moves the id of the user",
        (
            Edit(
                TRAINER + "data/formats/csv.py",
                "any(row[width:]) if file.user is None else len(row) > width",
                "any(row[width:])",
            ),
        ),
        ("tests/trainer_image/data/test_csv.py::test_separator_in_a_text_does_not_move_the_id_of_the_user",),
    ),
    Mutation(
        "the end of a csv row that is too long is not checked",
        (Edit(TRAINER + "data/formats/csv.py", 'raise csv.Error("row too long")', "self._text = io.StringIO()"),),
        ("tests/trainer_image/data/test_csv.py::test_file_with_a_row_that_is_too_long_is_refused",),
    ),
    Mutation(
        "the end of a tsv line that is too long is not checked",
        (Edit(TRAINER + "data/formats/csv.py", "if len(line) >= MAX_LINE_BYTES:", "if False:"),),
        ("tests/trainer_image/data/test_csv.py::test_file_with_a_row_that_is_too_long_is_refused",),
    ),
    Mutation(
        "a newline that a csv file escapes makes one record several units",
        (Edit(TRAINER + "data/formats/csv.py", """if _ends_in_escape(text.rstrip("\\r\\n")):""", "if False:"),),
        ("tests/trainer_image/data/test_csv.py::test_csv_row_that_ends_in_a_backslash_is_refused",),
    ),
    Mutation(
        "one record decides whether Ray's records without a user are used",
        (
            Edit(
                TRAINER + "data/read.py",
                "    missing = pa.nulls(len(block))\n",
                "    block = block if set(names) <= set(block.column_names) else block.slice(0, 0)\n"
                "    missing = pa.nulls(len(block))\n",
            ),
        ),
        ("tests/trainer_image/data/test_files.py::test_field_that_a_block_of_ray_lacks_is_null",),
    ),
    Mutation(
        "a record without the field of the user is a unit by itself",
        (
            Edit(
                TRAINER + "data/formats/text.py",
                "if not record or (user is not None and user not in record):",
                "if not record:",
            ),
        ),
        ("tests/trainer_image/data/test_files.py::test_record_that_lacks_the_column_of_the_user_is_dropped",),
    ),
    Mutation(
        "one row of a DataFrame changes the text of all others",
        (
            Edit(
                TRAINER + "data/records.py",
                "return int(value) if isinstance(value, float) and value.is_integer() else value",
                "return value",
            ),
        ),
        ("tests/trainer_image/data/test_records.py::test_row_of_a_data_frame_does_not_change_other_rows",),
    ),
)
