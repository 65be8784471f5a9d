"""The versions of pflsweep's code that trained a record's rounds, by the sessions that its metadata lists."""

from pflsweep.records.record import Record
from pflsweep.util.source_hash import edited_components


def trained_by(record: Record) -> list[dict[str, str]]:
    """Return the digests of pflsweep's code for each session that trained rounds in the tables; {} where unknown.

    A session that was killed before its first checkpoint is left out: its rounds were trained again.
    """
    sessions = [{**record.meta, "from": 1}, *record.meta.get("sessions", [])]
    trained, end = [], record.done + 1
    for session in reversed(sessions):
        if session["from"] < end:
            trained.append(session.get("digests", {}))
        end = min(end, session["from"])
    return trained[::-1]


def code_versions(record: Record) -> int:
    """Return how many versions of pflsweep's code have trained the rounds in the tables.

    Versions that are recorded as equivalent count as one (see source_hash.py). Versions without digests, which older
    records have, are not counted.
    """
    apart: list[dict[str, str]] = []
    for digests in trained_by(record):
        if digests and all(edited_components(known, digests) for known in apart):
            apart.append(digests)
    return len(apart)
