"""Writes the quickstart's data: invented hospital intake notes, and the department to which each was sent.

In: a seed. Out: ``data/train.jsonl``, which plays the private set: like real notes, its texts contain names, dates of
birth, telephone numbers and addresses. And ``data/eval.jsonl``, the public set on which accuracy is measured, with
other people. ``job.yaml`` beside this file reads both.

Faker invents every person, so nothing here needs protection. The set only looks like one that does. The department
follows from the complaint, with exceptions: some complaints belong to two departments, and a few notes were sent to the
wrong one. So a perfect accuracy is impossible. The same seed writes the same bytes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from random import Random

from faker import Faker

COMPLAINTS: dict[str, tuple[str, ...]] = {
    "cardiology": (
        "tightness across the chest when climbing stairs",
        "palpitations that come on at rest and last several minutes",
        "a racing, irregular heartbeat",
        "swollen ankles and breathlessness when lying flat",
        "crushing chest pain spreading to the left arm",
        "very high blood pressure readings at home, 190 over 110",
        "a flutter in the chest followed by near fainting",
        "breathless after fifty metres on the flat, with a known murmur",
        "a pulse of 38 on the wristwatch and heavy tiredness",
        "chest pressure that eases with the nitrate spray",
        "a pacemaker that beeps and needs a check",
    ),
    "orthopaedics": (
        "a swollen right knee that locks on bending",
        "hip pain on every step, worse going downstairs",
        "wrist pain after falling on an outstretched hand",
        "a twisted ankle, cannot bear weight, bruised to the toes",
        "shoulder stuck since a fall from a ladder, cannot lift the arm",
        "a broken collarbone from cycling, review of the sling",
        "low back pain after lifting boxes at work",
        "a bent little finger after catching a ball",
        "heel pain with the first steps in the morning",
        "grinding and clicking in the knee joint on stairs",
        "a stiff new hip after the replacement",
    ),
    "neurology": (
        "a one-sided throbbing headache with flashing lights",
        "tingling down one side of the face and slurred speech",
        "a shaking hand at rest and smaller handwriting",
        "a seizure at breakfast, confused afterwards",
        "growing forgetfulness, lost on the way home twice",
        "double vision by the evening and drooping eyelids",
        "numb feet that burn at night",
        "a sudden severe headache, the worst ever",
        "weakness of the left leg and poor balance",
        "jerks of the arm and blank spells at work",
        "facial droop on waking, no pain",
    ),
    "dermatology": (
        "an itchy red rash on both forearms",
        "a mole on the back that has grown and darkened",
        "scaly plaques on elbows and scalp, flaring again",
        "painful blisters in a band around the waist",
        "weeping eczema behind the knees",
        "acne with scarring that did not settle on tablets",
        "a patch on the nose that bleeds and will not heal",
        "hives every evening without a clear trigger",
        "hair coming out in round patches",
        "thick yellow toenails and peeling between the toes",
        "dry cracked hands since starting work in a kitchen",
    ),
    "gastroenterology": (
        "burning behind the breastbone after meals and at night",
        "cramping belly pain with loose stools",
        "blood mixed with the stool",
        "yellow eyes and dark urine",
        "bloating after bread and pasta, with weight loss",
        "food sticking on the way down, solids more than liquids",
        "vomiting after every meal",
        "pain under the right ribs after fatty food",
        "black tarry stools while on ibuprofen",
        "constipation with a swollen belly",
        "a flare of colitis, eight trips to the toilet a day",
    ),
    "paediatrics": (
        "a barking cough at night and noisy breathing",
        "fever of 39.5, feeding poorly, few wet nappies",
        "pulling at the left ear, off food, missed nursery",
        "croup last winter and wheezing again",
        "poor weight gain at the eight-month check",
        "a spotty rash after the first vaccination, mother worried",
        "bed-wetting again after a dry year",
        "a small button swallowed at nursery",
        "late walking, not yet standing alone",
        "big tonsils, snoring and pauses in breathing at night",
        "jaundice and sleepy at the breast",
    ),
}
DEPARTMENTS = tuple(COMPLAINTS)
ADULT_DEPARTMENTS = tuple(department for department in DEPARTMENTS if department != "paediatrics")

# Complaints that two departments share. The first department receives two of three.
SHARED: tuple[tuple[str, str, str], ...] = (
    ("dizzy spells on standing up", "cardiology", "neurology"),
    ("a faint in the supermarket queue, came round quickly", "cardiology", "neurology"),
    ("pain in the upper belly and lower chest after a heavy meal", "gastroenterology", "cardiology"),
    ("back pain shooting down the leg with a numb foot", "orthopaedics", "neurology"),
    ("numb fingers at night, weaker grip", "neurology", "orthopaedics"),
    ("an itchy rash all over, kept home from school", "paediatrics", "dermatology"),
    ("tummy ache on school mornings", "paediatrics", "gastroenterology"),
    ("a painful, scaly rash over a swollen finger joint", "dermatology", "orthopaedics"),
    ("itching without a rash, tired, off food", "dermatology", "gastroenterology"),
)
SHARED_RATE = 0.12
WRONG_DEPARTMENT_RATE = 0.03
SECOND_COMPLAINT_RATE = 0.25
RETURNING_RATE = 0.2
CHILD_RATE = 1 / 6
EVALUATION_ROWS = 400
# Fixed dates instead of ages: counted from today, the same seed would write other bytes tomorrow.
EARLIEST_BIRTH, YOUNGEST_ADULT, LATEST_BIRTH = date(1934, 1, 1), date(2011, 1, 1), date(2025, 12, 31)

OCCUPATIONS = ("retired teacher", "bus driver", "works nights", "lives alone", "carer for a parent", "self-employed")
SINCE = ("since Monday", "for two days", "for about a week", "on and off for a month", "since the holidays", "today")
COURSE = ("getting worse", "no better with paracetamol", "comes and goes", "sleeping badly", "second time this year")
HISTORY = (
    "No allergies known.",
    "Allergic to penicillin.",
    "Takes metformin and a statin.",
    "On warfarin, last INR 2.4.",
    "Asthma, uses a blue inhaler.",
    "No regular medicines.",
    "Operation on the appendix in 2009.",
    "Father died young.",
    "Ex-smoker, ten a day.",
    "Similar episode last year, settled by itself.",
    "Seen by the family doctor first, letter attached.",
)
CLOSINGS = (
    "Wants to be called after five.",
    "Interpreter needed.",
    "Waiting in bay 4.",
    "Walks with a stick.",
    "Will come back with the tablets list.",
    "Rather anxious, asked twice how long it takes.",
    "Parking ticket runs out at noon.",
    "Please ring before sending letters.",
)
# {c}: complaint, {since}: duration, {who}: name, {dob}: date of birth, {tel}: telephone, {addr}: address.
LAYOUTS = (
    "{who}, born {dob}, tel {tel}. Reports {c}, {since}.",
    "Pt {who} (DOB {dob}) c/o {c} {since}. Contact {tel}.",
    "{c}, {since}. {who}, {addr}, phone {tel}.",
    "Walk-in: {who}, {addr}. Main problem: {c}, {since}.",
    "Referred with {c}. Name {who}, date of birth {dob}, lives at {addr}.",
    "Phone intake. Caller gives {who}, {tel}, and describes {c} {since}.",
    "{who} came in with {c}, {since}. DOB {dob}.",
    "Complaint: {c}. Patient: {who}. Born: {dob}. Home: {addr}. Tel: {tel}.",
    "Here for {c}. {who}, {tel}.",
    "{who}: {c}.",
)
WORD_LIMIT = 60


@dataclass(frozen=True)
class Patient:
    """One invented person, with the data that the front desk has."""

    patient_id: str
    name: str
    born: date
    telephone: str
    address: str

    @property
    def is_child(self) -> bool:
        """Under fifteen when the notes were written."""
        return self.born > YOUNGEST_ADULT


def invent_patient(random: Random, fake: Faker, number: int) -> Patient:
    """A person from Faker. One of six is a child. ``number`` becomes the patient id."""
    years = (YOUNGEST_ADULT, LATEST_BIRTH) if random.random() < CHILD_RATE else (EARLIEST_BIRTH, YOUNGEST_ADULT)
    return Patient(
        patient_id=f"P{number:06d}",
        name=fake.name(),
        born=fake.date_between_dates(*years),
        telephone=fake.phone_number(),
        address=f"{fake.street_address()}, {fake.city()}".replace("\n", ", "),
    )


def pick_complaint(random: Random, patient: Patient) -> tuple[str, str]:
    """The complaint, and the department to which the patient was sent (sometimes the wrong one)."""
    if random.random() < SHARED_RATE:
        suitable = [shared for shared in SHARED if ("paediatrics" in shared) == patient.is_child]
        complaint, first, second = random.choice(suitable)
        department = random.choices((first, second), weights=(2, 1))[0]
    else:
        department = "paediatrics" if patient.is_child else random.choice(ADULT_DEPARTMENTS)
        complaint = random.choice(COMPLAINTS[department])
        if random.random() < SECOND_COMPLAINT_RATE:
            complaint += f", also {random.choice(COMPLAINTS[department])}"
    if random.random() < WRONG_DEPARTMENT_RATE:
        department = random.choice([other for other in DEPARTMENTS if other != department])
    return complaint, department


def write_note(random: Random, patient: Patient) -> dict[str, str]:
    """One record: ``text`` of at most ``WORD_LIMIT`` words, ``label`` and ``patient_id``."""
    complaint, department = pick_complaint(random, patient)
    if random.random() < 0.4:
        complaint += f", {random.choice(COURSE)}"
    note = random.choice(LAYOUTS).format(
        c=complaint,
        since=random.choice(SINCE),
        who=patient.name,
        dob=patient.born.strftime("%d/%m/%Y"),
        tel=patient.telephone,
        addr=patient.address,
    )
    sentences = [note[0].upper() + note[1:]]
    if random.random() < 0.5:
        sentences.append(random.choice(HISTORY))
    if random.random() < 0.2 and not patient.is_child:
        sentences.append(random.choice(OCCUPATIONS).capitalize() + ".")
    if random.random() < 0.3:
        sentences.append(random.choice(CLOSINGS))
    words = " ".join(sentences).split()
    return {"text": " ".join(words[:WORD_LIMIT]), "label": department, "patient_id": patient.patient_id}


def notes(rows: int, *, seed: int, first_patient: int = 0) -> list[dict[str, str]]:
    """``rows`` notes about people numbered from ``first_patient``. About one of five notes is a return visit."""
    random = Random(seed)
    fake = Faker("en_GB")
    fake.seed_instance(seed)
    patients: list[Patient] = []
    records = []
    for _ in range(rows):
        if patients and random.random() < RETURNING_RATE:
            patient = random.choice(patients)
        else:
            patient = invent_patient(random, fake, first_patient + len(patients))
            patients.append(patient)
        records.append(write_note(random, patient))
    return records


def write_jsonl(path: Path, records: Sequence[dict[str, str]]) -> None:
    """Write one JSON object for each line. The file is renamed once it is complete."""
    temporary = path.with_name(path.name + ".part")
    temporary.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    temporary.replace(path)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line: ``make_data.py [--rows N] [--seed S] [--out DIRECTORY]``."""
    parser = argparse.ArgumentParser(description="Write invented intake notes for the quickstart.")
    parser.add_argument("--rows", type=int, default=4200, help="training notes (default 4200; job.yaml needs 4000)")
    parser.add_argument("--seed", type=int, default=7, help="same seed, same files (default 7)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "data", help="directory to write to")
    options = parser.parse_args(arguments)
    if options.rows < 1:
        parser.error("--rows must be at least 1")

    options.out.mkdir(parents=True, exist_ok=True)
    write_jsonl(options.out / "train.jsonl", notes(options.rows, seed=options.seed))
    write_jsonl(
        options.out / "eval.jsonl",
        notes(EVALUATION_ROWS, seed=options.seed + 1, first_patient=options.rows),
    )
    print(f"wrote {options.rows} training and {EVALUATION_ROWS} evaluation notes to {options.out}")


if __name__ == "__main__":
    main()
