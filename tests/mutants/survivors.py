"""The report of the generated mutants: how many were killed in each module, and every mutant that survived.

In comes the folder in which mutmut ran, with its verdicts; out goes `report.md` in that folder. A survivor that
`equivalent.toml` lists appears with its reason. Any other one is a test that is missing.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tomllib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

EQUIVALENT = Path(__file__).with_name("equivalent.toml")
_NO_GPU = "Tests run on machines without a GPU, where a tensor without a device is on the CPU as well."
_KILLED = (1, 3)
_VERDICTS = {0: "survived", 5: "no test", 33: "no test", 2: "not tried", None: "not tried"}


@dataclass(frozen=True)
class Equivalent:
    """A mutant that may survive.

    Attributes:
        module: path in its package, such as `tensorguard/privacy/noise.py`.
        function: the name of a function, with its class.
        before, after: the changed lines, without white space at both ends.
        reason: why no test can notice it, or why no test has to.
    """

    module: str
    function: str
    before: str
    after: str
    reason: str


def equivalents() -> list[Equivalent]:
    """The mutants that may survive."""
    return [Equivalent(**entry) for entry in tomllib.loads(EQUIVALENT.read_text()).get("mutant", [])]


@dataclass(frozen=True)
class Survivor:
    """A mutant that no test has killed."""

    name: str
    module: str
    function: str
    verdict: str
    before: str
    after: str

    def matches(self, known: Equivalent) -> bool:
        ours = (self.module, self.function, self.before, self.after)
        return ours == (known.module, known.function, known.before, known.after)


def write_report(stage: Path, *, complete: bool = False) -> int:
    """Write `report.md` and print its summary.

    Returns 1 if a survivor is not listed, or with `complete` if a mutant was not tried; else 0.
    """
    known = equivalents()
    rows, open_ones, listed = [], [], []
    for meta in sorted((stage / "mutants").rglob("*.meta")):
        module = meta.relative_to(stage / "mutants").as_posix().removesuffix(".meta")
        if not (stage / module).exists():
            continue
        codes: dict[str, int | None] = json.loads(meta.read_text())["exit_code_by_key"]
        if not codes:
            continue
        verdicts = Counter(_verdict(code) for code in codes.values())
        accepted = 0
        for name, code in codes.items():
            if code in (0, 5, 33):
                found = survivor(stage, module, name, _verdict(code))
                reason = reason_of(found, known)
                accepted += reason is not None
                (listed if reason else open_ones).append((found, reason))
        counts = [verdicts[each] for each in ("killed", "timeout", "survived", "no test", "not tried")]
        rows.append((module, len(codes), *counts, accepted))
    columns = ("module", "mutants", "killed", "timed out", "survived", "no test", "not tried", "listed")
    lines = ["# Generated mutants", "", _row(columns), _row(["---"] * len(columns)), *map(_row, rows), ""]
    total = [sum(column) for column in zip(*(row[1:] for row in rows))]
    lines += [_row(("all", *total)), ""]
    for title, survivors in (("Survivors that no entry explains", open_ones), ("Listed survivors", listed)):
        lines += [f"## {title}", ""]
        for each, reason in survivors:
            lines += [f"`{each.name}` ({each.module}, {each.function}): {reason or each.verdict}", "", "```diff"]
            lines += [*(f"-{line}" for line in each.before.splitlines())]
            lines += [*(f"+{line}" for line in each.after.splitlines()), "```", ""]
    report = stage / "report.md"
    report.write_text("\n".join(lines))
    noticed = total[1] + total[2]
    print(f"{noticed} of {total[0]} mutants were noticed, {len(listed)} survivors are listed as equivalent, and")
    print(f"{len(open_ones)} are not: {report}")
    return 1 if open_ones or (complete and total[5]) else 0


def _verdict(code: int | None) -> str:
    return "killed" if code in _KILLED else _VERDICTS.get(code, "timeout")


def _row(cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"  # type: ignore[call-overload]


def reason_of(found: Survivor, known: Iterable[Equivalent]) -> str | None:
    """Why the survivor may survive; None where a test is missing."""
    if _leaves_device_out(found.before, found.after):
        return _NO_GPU
    return next((each.reason for each in known if found.matches(each)), None)


def _leaves_device_out(before: str, after: str) -> bool:
    """Whether the mutant only omits a device, as in `torch.empty(d, device=None)` or `move(batch, None)`."""
    argument, moved = r"device=[\w.]*device", r"\.to\([\w.]*device"
    left_out = [re.sub(argument, with_it, before) for with_it in ("device=None", "")]
    left_out.append(re.sub(r", (self\._)?device\)", ", None)", before))
    left_out.append(re.sub(r"(_device =) device$", r"\1 None", before))
    if re.fullmatch(argument + ",", before):
        left_out.append("")
    left_out += [re.sub(argument + ", ", "", before), re.sub(moved, ".to(None", before)]
    return after != before and after in left_out


def survivor(stage: Path, module: str, name: str, verdict: str) -> Survivor:
    """The survivor with its changed lines, from the copy in `stage`."""
    with contextlib.chdir(stage):  # mutmut reads its settings where it is imported
        from mutmut.mutation.diff_apply import get_diff_for_mutant
        from mutmut.utils.format_utils import orig_function_and_class_names_from_key

        os.environ.setdefault("MUTANT_UNDER_TEST", "")
        difference = get_diff_for_mutant(name, path=Path(module)).splitlines()[2:]
        function, owner = orig_function_and_class_names_from_key(name)
    before, after = ("\n".join(line[1:].strip() for line in difference if line[:1] == sign) for sign in "-+")
    return Survivor(name, module, f"{owner}.{function}" if owner else function, verdict, before, after)
