"""Mistakes in reading records and assigning them to units."""

from __future__ import annotations

from mutations.mutation import DATA_TESTS, TRAINER, Edit, Mutation

_VALUES = TRAINER + "data/values.py"
_ONE_TABLE = DATA_TESTS + "test_one_table.py::test_every_source_makes_the_same_of_a_column"

DATA: tuple[Mutation, ...] = (
    Mutation(
        "ids in upper and lower case are two users",
        (Edit(_VALUES, 'unicodedata.normalize("NFKC", text).casefold()', 'unicodedata.normalize("NFKC", text)'),),
        (_ONE_TABLE,),
    ),
    Mutation(
        "ids with other white space are two users",
        (Edit(_VALUES, 'return " ".join("".join(filter(_is_visible, text)).split())', "return text.strip()"),),
        (_ONE_TABLE,),
    ),
    Mutation(
        "ids with other dashes are two users",
        (Edit(_VALUES, 'or unicodedata.category(each) == "Pd"', ""),),
        (_ONE_TABLE,),
    ),
    Mutation(
        "ids with leading zeros are two users",
        (Edit(_VALUES, "        return str(int(text))\n", "        return text\n"),),
        (_ONE_TABLE,),
    ),
    Mutation(
        "a UUID is a user for each of its spellings",
        (Edit(_VALUES, "if found := _UUID.fullmatch(text):", "if (found := _UUID.fullmatch(text)) and not found:"),),
        (_ONE_TABLE,),
    ),
    Mutation(
        "an object is the id of a user",
        (Edit(_VALUES, "    raise NotAnId(_name_of(value))\n\n\ndef", "    return str(value)\n\n\ndef"),),
        (_ONE_TABLE,),
    ),
    Mutation(
        "the JSON text of an object is the id of a user",
        (Edit(_VALUES, 'if text[0] in "{[" and _is_json(text):', "if False:"),),
        (_ONE_TABLE,),
    ),
    Mutation(
        "bytes that are not text are no id, and so each record is a unit",
        (
            Edit(
                _VALUES,
                '    if any(unicodedata.category(each) == "Cc" and not each.isspace() for each in text):\n'
                '        raise NotAnId("bytes that are not text")\n',
                "",
            ),
        ),
        (_ONE_TABLE,),
    ),
    Mutation(
        "an id that has lost digits is an id",
        (Edit(_VALUES, "if written and (exponent", "if False and (exponent"),),
        (_ONE_TABLE,),
    ),
    Mutation(
        "an id is a number with a fraction",
        (Edit(_VALUES, "if not value.is_integer() or abs(value) >= EXACT_FLOAT:", "if False:"),),
        (_ONE_TABLE,),
    ),
    Mutation(
        "a float of 32 bits is the id of a user",
        (
            Edit(
                TRAINER + "data/columns.py",
                "return (_is_scalar(kind) and not short) or",
                "return _is_scalar(kind) or",
            ),
        ),
        (_ONE_TABLE,),
    ),
    Mutation(
        "only the first file's types are checked",
        (
            Edit(
                TRAINER + "data/files.py",
                "            folders, fixed = self.check_columns(path)\n",
                "            folders, fixed = self.folder_columns(path), True\n",
            ),
        ),
        (DATA_TESTS + "test_units.py::test_types_of_each_file_are_checked",),
    ),
    Mutation(
        "a record without the id of a user is a unit, and no statement says so",
        (Edit(TRAINER + "data/unusable.py", 'dataset.unit.missing != "OwnUnit"', "False"),),
        (DATA_TESTS + "test_units.py::test_record_without_an_id_ends_the_job_unless_it_is_a_unit",),
    ),
    Mutation(
        "a transform of a data set, which may make ids, is ignored",
        (Edit(TRAINER + "data/memory.py", 'if source.format.get("type") == "custom":', "if False:"),),
        (DATA_TESTS + "test_units.py::test_transform_of_hugging_face_is_refused",),
    ),
    Mutation(
        "the second of two columns with one name is the user",
        (
            Edit(
                TRAINER + "data/columns.py",
                "form_of(name) for other in self.names) > 1",
                "form_of(name) for other in self.names) > 2",
            ),
        ),
        (DATA_TESTS + "test_units.py::test_column_that_occurs_twice_is_refused",),
    ),
    Mutation(
        "a key that occurs twice has its last value",
        (Edit(TRAINER + "data/formats/jsonl.py", "if len(found) < len(pairs):", "if False:"),),
        (DATA_TESTS + "test_units.py::test_column_that_occurs_twice_is_refused",),
    ),
    Mutation(
        "a separator in a text moves the id of the user",
        (Edit(TRAINER + "data/formats/csv.py", "if len(row) != width:", "if False:"),),
        (DATA_TESTS + "test_units.py::test_row_with_another_number_of_values_is_refused",),
    ),
    Mutation(
        "the header of a joined file, in another order, is a record",
        (
            Edit(
                TRAINER + "data/formats/csv.py", "all(form_of(value).casefold() in names for value in values)", "False"
            ),
        ),
        (DATA_TESTS + "test_units.py::test_second_header_is_refused",),
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
)
