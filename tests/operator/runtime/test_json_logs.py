"""A log record becomes one line of JSON with its extra fields."""

from __future__ import annotations

import json
import logging

from tensafe_operator.runtime.json_logs import JsonFormatter


def test_record_is_one_line_with_its_extra_fields() -> None:
    record = logging.makeLogRecord({"name": "operator", "levelname": "INFO", "msg": "two\nlines", "job": "one"})
    line = JsonFormatter().format(record)
    assert "\n" not in line
    fields = json.loads(line)
    assert (fields["logger"], fields["level"], fields["message"]) == ("operator", "INFO", "two\nlines")
    assert fields["job"] == "one"
    assert "args" not in fields and "thread" not in fields
