"""The page of `pflsweep report runs`: tables, figures, and all that a reader needs to trust or doubt them."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pflsweep.config.keys import PLUGS, as_override
from pflsweep.records.ledger import Ledger
from pflsweep.records.provenance import code_versions
from pflsweep.records.record import Record
from pflsweep.records.select import Chosen, comparable
from pflsweep.report import export, figures, html, style, tables, template
from pflsweep.report.compare import Row, Setting, band_of, check_baseline, settings
from pflsweep.report.markdown import code, inline
from pflsweep.util import files
from pflsweep.util.archive import ArchivePath
from pflsweep.util.errors import counted

ORIGIN = ("commit", "version", "python", "torch", "platform", "processor", "device", "threads")


def write(chosen: Chosen, out: Path, baseline: str | None, goal: float | None = None) -> Path:
    """Write runs.md, the same as runs.html, its numbers as runs.csv and runs.tex, and figures into `out`.

    Return the path of runs.md. goal: an accuracy in [0, 1]; the table has the first round that reaches it.
    """
    made = settings(chosen.records, chosen.searches.keys, chosen.searches.partial)
    found = [setting for setting in made if setting.rows]
    check_baseline(found, baseline)
    out.mkdir(parents=True, exist_ok=True)
    ends = [f"-{number}" if len(found) > 1 else "" for number in range(1, len(found) + 1)]
    differing = found[0].differing_keys if found else []
    sweeps = _sweeps(chosen)
    text = template.render(
        "runs.md",
        # A trial that went on is in two settings
        count=counted(
            len({record.meta["identity"] for setting in found for row in setting.rows for record in row.records}),
            "finished run",
        ),
        searches=_searches(chosen),
        differ=[(key, [_shown(each.config.get(key)) for each in found]) for key in differing],
        sections=[_section(*each, baseline, goal, out, chosen) for each in zip(found, ends, strict=True)],
        commands=[code(ledger.command) for ledger in sweeps],
        waiting=[line for ledger in sweeps for line in _waiting(ledger)],
        elsewhere=[line for ledger in sweeps for line in _elsewhere(ledger, chosen)],
        left_out=_left_out(chosen),
        goal=None if goal is None else f"{100 * goal:g}%",
    )
    path = out / "runs.md"
    files.write_text(path, text)
    files.write_text(out / "runs.html", html.page(text, out))
    files.write_text(out / "runs.csv", export.as_csv(found, baseline, goal))
    files.write_text(out / "runs.tex", export.as_latex(found, baseline))
    return path


def _shown(value: Any) -> str:
    """Return a value as a table of settings has it, which says neither null nor what a setting has no key for."""
    return tables.NONE if value is None else as_override(value)


def _section(
    setting: Setting, end: str, baseline: str | None, goal: float | None, out: Path, chosen: Chosen
) -> dict[str, Any]:
    """Return one setting's part of the page; tables and lines are markdown. end: of its figures' names."""
    base, new = setting.baseline(baseline), tables.new_clients(setting)
    return {
        "name": setting.name,
        "accuracy": tables.as_markdown(tables.accuracy(setting, base)),
        "counted": _counted(setting.rows),
        "past": _past(setting.rows),
        "reconstructed": _reconstructions(setting.rows),
        "no_baseline": baseline if base is None else "",
        "others": tables.as_markdown(tables.others(setting, base, goal)),
        "targets": any(map(tables.further_scores, setting.rows)),
        "new_clients": tables.as_markdown(new) if len(new) else "",
        "cost": tables.as_markdown(tables.cost(setting)),
        "figures": draw(setting, base, out, end),
        "shared": _listing(setting.config),
        "hyperparameters": _hyperparameters(setting.rows, chosen.searches.won),
        "studies": _studies(setting.rows),
        "origin": _origin(setting.rows),
    }


def _past(rows: list[Row]) -> list[str]:
    """Return the trials that are shown as of an earlier round than their last."""
    return [
        f"{inline(record.meta['name'])} {code(record.meta['identity'])}: after {record.status['rounds']} of "
        f"{record.status['target']} rounds"
        for row in rows
        for record in row.records
        if record.status["rounds"] < (record.status.get("target") or 0)
    ]


def _counted(rows: list[Row]) -> list[str]:
    """Return over how many clients each row's mean is, where that differs: malicious ones do not count."""
    counts = {row.label: sorted({len(each) for each in row.accuracies.values()}) for row in rows}
    if len({tuple(each) for each in counts.values()}) < 2:
        return []
    return [f"{inline(label)}: {' or '.join(map(str, each))}" for label, each in counts.items()]


def _reconstructions(rows: list[Row]) -> list[str]:
    """Return what of the rows' methods is not in their papers."""
    own = {row.label: row.records[0].meta.get("reconstruction") for row in rows}
    return [f"{inline(label)}: {inline(what)}" for label, what in own.items() if what]


def draw(setting: Setting, base: Row | None, out: Path, suffix: str = "") -> dict[str, str]:
    """Save the figures of a setting as PNG and SVG; return what each shows, by the stem of its files."""
    band = band_of(setting.rows)
    curves = figures.accuracy([row.curve() for row in setting.rows], f"Personal models, {setting.name}", band)
    style.save(curves, out / f"accuracy{suffix}")
    made = {f"accuracy{suffix}": "accuracy by round"}
    if new := setting.new_clients:
        style.save(figures.accuracy(new, f"New clients, {setting.name}", band, by="epoch"), out / f"new{suffix}")
        made[f"new{suffix}"] = "accuracy of new clients by epoch of fine-tuning"
    pairs = {row.label: row.gains(base) for row in setting.rows if row is not base} if base else {}
    by_method = {label: gains for label, gains in pairs.items() if gains}
    if base and by_method:
        title, order = f"Gains in the last round, {setting.name}", [row.label for row in setting.rows]
        style.save(figures.gains(by_method, base.label, order, title), out / f"gains{suffix}")
        made[f"gains{suffix}"] = f"gain of each client over {base.label}"
    return made


def _searches(chosen: Chosen) -> list[str]:
    """Return how many trials of searches are left out, how to see them, and what marks mean."""
    lines = []
    if {record.meta["identity"] for record in chosen.records} & chosen.searches.partial:
        lines.append(
            "† The hyperparameters of this row were chosen although some points of its search have no result "
            "(tune.partial=true): they crashed, or their workers were killed."
        )
    gone = chosen.searches.superseded
    superseded = [inline(record.meta["name"]) for record in chosen.hidden if record.meta["identity"] in gone]
    if superseded:
        lines.append(
            "Left out are final trials of searches in which another point has won since, or a point has no result: "
            f"{', '.join(superseded)}."
        )
    searching = len(chosen.hidden) - len(superseded)
    if not searching:
        return lines
    first = chosen.hidden[0].place
    parent = shlex.quote(first.parent.as_posix())
    how, command = "folders", f"pflsweep report runs {parent}/[0-9a-f]*"
    if isinstance(first, ArchivePath):
        how, command = "identities", f"pflsweep report runs --runs {parent} {first.name}"
    return [
        *lines,
        f"{searching} trials of searches, by which hyperparameters were chosen, are left out; they are shown "
        f"where their {how} are named: {code(command)}.",
    ]


def _hyperparameters(rows: list[Row], won: Mapping[str, str]) -> list[str]:
    """Return what makes each row, and how it was chosen. won: how a search chose, by identity."""
    text = []
    for row in rows:
        config = row.records[0].config
        own = {k: v for group in ("algorithm", *PLUGS) for k, v in (config.get(group) or {}).items()}
        values = {**{k: v for k, v in own.items() if k != "_option_"}, **row.tuned}
        how = dict.fromkeys(won[r.meta["identity"]] for r in row.records if r.meta["identity"] in won)
        text.append(f"{inline(row.label)}: {'; '.join([_pairs(values) or 'nothing to set', *map(inline, how)])}")
    return text


def _studies(rows: list[Row]) -> list[str]:
    """Return where the tables of studies lie."""
    return [
        f"{inline(record.meta['study'])} of {inline(record.meta['name'])}: "
        + code(record.path("study.parquet").as_posix())
        for row in rows
        for record in row.studied
    ]


def _origin(rows: list[Row]) -> list[str]:
    """Return commit, versions and machine, once where all runs share them, else by run."""
    lines = []
    for key in ORIGIN:
        values: dict[str, list[str]] = {}
        for record in (record for row in rows for record in row.records):
            values.setdefault(_origin_of(record, key), []).append(record.meta["name"])
        shown = "; ".join(inline(v if len(values) == 1 else f"{v} ({', '.join(names)})") for v, names in values.items())
        lines.append(f"{key}: {shown}")
    for record in (record for row in rows for record in row.records):
        if (versions := code_versions(record)) > 1:
            lines.append(f"{inline(record.meta['name'])}: its rounds were trained by {versions} versions of the code")
    identities = ", ".join(f"{inline(r.meta['name'])} {code(r.meta['identity'])}" for row in rows for r in row.records)
    return [*lines, f"records: {identities}"]


def _origin_of(record: Record, key: str) -> str:
    """Return a fact about each session that trained a run, where they differ."""
    sessions = [record.meta, *record.meta.get("sessions", [])]
    values = [session.get(key, session.get("environment", {}).get(key)) for session in sessions]
    return ", then ".join(dict.fromkeys("unknown" if value is None else str(value) for value in values))


def _sweeps(chosen: Chosen) -> list[Ledger]:
    """Return the ledgers that the runs belong to, each once."""
    found = [chosen.searches.order.get(record.meta["identity"]) for record in chosen.records]
    return [chosen.searches.ledgers[id] for id in dict.fromkeys(place[0] for place in found if place)]


def _waiting(ledger: Ledger) -> list[str]:
    """Return what a sweep has not trained yet: its groups without all final trials, and how many seeds they have."""
    seeds = len(ledger.seeds)
    return [
        inline(f"{method}{f' {setting}' if setting else ''}: {len(group['trials'])} of {seeds} seeds")
        for (setting, method), group in ledger.groups.items()
        if len(group["trials"]) < seeds
    ]


def _elsewhere(ledger: Ledger, chosen: Chosen) -> list[str]:
    """Return which finished trials of a sweep have no record here, since they were trained on another machine or
    deleted.
    """
    places = {ledger.path.parent.parent, *chosen.places, *(record.place.parent for record in chosen.records)}
    lines = []
    for (setting, method), group in ledger.groups.items():
        lacking = [
            code(identity)
            for identity in group["trials"].values()
            if not any((place / identity / "meta.json").exists() for place in places)
        ]
        if lacking:
            lines.append(f"{inline(f'{method} {setting}'.strip())}: {', '.join(lacking)}")
    return lines


def _left_out(chosen: Chosen) -> list[str]:
    """Return the runs in no table: named with the reason, so that nothing disappears."""
    left = [record for record in chosen.records if not comparable(record)]
    return [*map(_unfinished, left), *map(inline, (*chosen.damaged, *chosen.copies))]


def _unfinished(record: Record) -> str:
    status, meta = record.status, record.meta
    error = status.get("error") or ("no client was scored" if status["status"] == "finished" else "")
    why = f": {inline(error)}" if error else ""
    done = f"{status['rounds']} of {inline(status.get('target'))} rounds"
    return f"{inline(meta['name'])} {code(meta['identity'])}: {inline(status['status'])} after {done}{why}"


def _listing(values: dict[str, Any]) -> list[str]:
    """Return the flat config, one line per group."""
    groups: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        groups.setdefault(key.rpartition(".")[0] or "other", {})[key] = value
    return [f"{inline(head)}: {_pairs(group)}" for head, group in groups.items()]


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(code(f"{k}={as_override(v)}") for k, v in values.items())
