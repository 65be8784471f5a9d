"""The page of `pflsweep report runs`: tables, figures, and all that a reader needs to trust or doubt them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pflsweep.config.keys import PLUGS, as_override
from pflsweep.records.record import Record
from pflsweep.records.select import Chosen
from pflsweep.report import figures, html, style, tables
from pflsweep.report.compare import Row, Setting, check_baseline, settings
from pflsweep.report.markdown import cell, code, inline
from pflsweep.util.archive import ArchivePath

ORIGIN = ("commit", "version", "python", "torch", "platform", "processor", "device", "threads")

NOTES = """\
Accuracies are percent, of the personal models on each client's own test data, clients weighted equally. A
95% CI over *clients* is the percentile bootstrap over the clients of a single seed (10,000 resamples,
seeded: which clients there are); one over *seeds* is Student's t interval over the means of several seeds.
The difference to the baseline is taken client by client under the same seed, its CI likewise. The best
round is chosen on test data, so that it flatters; the last round is not chosen. Std over clients and worst
10% are of the last round, as is all of the other metrics: macro F1 is a mean over clients; *over samples* is the sum of
correct answers over that of samples; S-acc is on a client's own test data joined with that of a share of the others,
drawn once (union: on all of it, own: on as much as is its own), G-acc on everybody's, `trained` of the local models
before aggregation, all with the std over clients in brackets; the gain over the baseline too; *-* is what a run did
not score (`metrics.*`, which trains the same). What a sweep beside the runs has searched, such as `train.lr`, is a
hyperparameter; rows of one method are labelled with those in which they differ. Floats are for one client and round,
mean over the rounds; seconds are training and evaluation, images/s training alone. Figures cut bands off at 0 and 100,
and where they would leave the curves no room.
"""


def write(chosen: Chosen, out: Path, baseline: str | None, goal: float | None = None) -> Path:
    """Writes runs.md, the same as runs.html, and figures into `out`. goal: an accuracy whose first round is told."""
    made = settings(chosen.records, chosen.searches.keys, chosen.searches.partial)
    found = [setting for setting in made if setting.rows]
    check_baseline(found, baseline)
    out.mkdir(parents=True, exist_ok=True)
    text = [f"# Comparison of {sum(len(row.records) for s in found for row in s.rows)} finished runs\n"]
    text += [*_searches(chosen), *_apart(found)]
    for number, setting in enumerate(found, start=1):
        heading = (f"Setting {number}: " if len(found) > 1 else "") + inline(setting.name)
        suffix = f"-{number}" if len(found) > 1 else ""
        base = setting.baseline(baseline), baseline
        text += [f"## {heading}\n", *_section(setting, base, goal, out, suffix, chosen.searches.won)]
    if found:
        text += ["## How to read this\n", NOTES]
    text += _left_out(chosen)
    path = out / "runs.md"
    path.write_text("\n".join(text))
    (out / "runs.html").write_text(html.page("\n".join(text), out))
    return path


def _section(
    setting: Setting, baseline: tuple[Row | None, str | None], goal: float | None, out: Path, suffix: str,
    won: Mapping[str, str],
) -> list[str]:  # fmt: skip
    """One setting: accuracy, other metrics, cost, figures, shared settings, origin. baseline: its row, and its name.
    won: how hyperparameters were chosen, by identity.
    """
    base, wanted = baseline
    text = [tables.as_markdown(tables.accuracy(setting, base)), *_reconstructions(setting.rows)]
    if base is None:
        text.append(f"No finished run of the baseline {inline(wanted)} in this setting: no differences.\n")
    text += ["Other metrics:\n", tables.as_markdown(tables.others(setting, base, goal))]
    if len(new := tables.newcomers(setting)):
        text += ["New clients, which took part in no round and fine-tune the global model:\n", tables.as_markdown(new)]
    text += ["Cost:\n"]
    text += [tables.as_markdown(tables.cost(setting))]
    text += [f"![{alt}]({name}.png)\n" for name, alt in draw(setting, base, out, suffix).items()]
    text += ["Shared settings:\n", _listing(setting.config), *_hyperparameters(setting.rows, won)]
    return [*text, *_studies(setting.rows), "Made by:\n", _origin(setting.rows)]


def _reconstructions(rows: list[Row]) -> list[str]:
    """What of the rows' methods is not in their papers."""
    own = {row.label: row.records[0].meta.get("reconstruction") for row in rows}
    lines = [f"- {inline(label)}: {inline(what)}" for label, what in own.items() if what]
    return ["Reconstructed, since their papers do not say it:\n", "\n".join(lines) + "\n"] if lines else []


def draw(setting: Setting, base: Row | None, out: Path, suffix: str = "") -> dict[str, str]:
    """Saves the figures of a setting as PNG and SVG; file stem -> what it shows."""
    band = "band: 95% CI over seeds" if any(len(row.records) > 1 for row in setting.rows) else ""
    curves = figures.accuracy([row.curve() for row in setting.rows], f"Personal models, {setting.name}", band)
    style.save(curves, out / f"accuracy{suffix}")
    made = {f"accuracy{suffix}": "accuracy by round"}
    if new := setting.newcomers:
        style.save(figures.accuracy(new, f"New clients, {setting.name}", band, by="epoch"), out / f"new{suffix}")
        made[f"new{suffix}"] = "accuracy of new clients by epoch of fine-tuning"
    pairs = {row.label: row.gains(base) for row in setting.rows if row is not base} if base else {}
    by_method = {label: gains for label, gains in pairs.items() if gains}
    if base and by_method:
        title, order = f"Gains in the last round, {setting.name}", [row.label for row in setting.rows]
        style.save(figures.gains(by_method, base.label, order, title), out / f"gains{suffix}")
        made[f"gains{suffix}"] = f"gain of each client over {inline(base.label)}"
    return made


def _searches(chosen: Chosen) -> list[str]:
    """Return how many trials of searches are left out, how to see them, and what marks mean."""
    lines = []
    if {record.meta["identity"] for record in chosen.records} & chosen.searches.partial:
        lines.append(
            "† The hyperparameters of this row were chosen although some points of its search have no result "
            "(tune.partial=true): they crashed, or their workers were killed.\n"
        )
    gone = chosen.searches.superseded
    superseded = [inline(record.meta["name"]) for record in chosen.hidden if record.meta["identity"] in gone]
    if superseded:
        lines.append(
            f"Left out are final trials of points that have lost since, when another point was tried again: "
            f"{', '.join(superseded)}.\n"
        )
    searching = len(chosen.hidden) - len(superseded)
    if not searching:
        return lines
    first = chosen.hidden[0].place
    how, command = "folders", f"pflsweep report runs {first.parent.as_posix()}/[0-9a-f]*"
    if isinstance(first, ArchivePath):
        how, command = "identities", f"pflsweep report runs --runs {first.parent.as_posix()} {first.name}"
    return [
        *lines,
        f"{searching} trials of searches, by which hyperparameters were chosen, are left out; they are shown "
        f"where their {how} are named: {code(command)}.\n",
    ]


def _apart(found: list[Setting]) -> list[str]:
    """Where the settings differ, when there are several."""
    if len(found) < 2:
        return []
    head = "| | " + " | ".join(f"setting {n}" for n in range(1, len(found) + 1)) + " |"
    lines = [
        f"| {cell(code(k))} | " + " | ".join(inline(s.config.get(k, tables.NONE)) for s in found) + " |"
        for k in found[0].apart
    ]
    text = "Runs of different settings are never averaged or ranked together. The settings differ in:\n"
    return [text, "\n".join([head, "|:--" * (len(found) + 1) + "|", *lines]) + "\n"]


def _hyperparameters(rows: list[Row], won: Mapping[str, str]) -> list[str]:
    text = []
    for row in rows:
        config = row.records[0].config
        own = {k: v for group in ("algorithm", *PLUGS) for k, v in (config.get(group) or {}).items()}
        values = {**{k: v for k, v in own.items() if k != "_option_"}, **row.tuned}
        how = dict.fromkeys(won[r.meta["identity"]] for r in row.records if r.meta["identity"] in won)
        text.append(f"- {inline(row.label)}: {'; '.join([_pairs(values) or 'nothing to set', *map(inline, how)])}")
    return ["Hyperparameters:\n", "\n".join(text) + "\n"]


def _studies(rows: list[Row]) -> list[str]:
    """Where their tables lie."""
    lines = [
        f"- {inline(record.meta['study'])} of {inline(record.meta['name'])}: "
        + code((record.place / "study.parquet").as_posix())
        for row in rows
        for record in row.studied
    ]
    return ["Studies, which change none of these numbers:\n", "\n".join(lines) + "\n"] if lines else []


def _origin(rows: list[Row]) -> str:
    """Commit, versions and machine: once where all runs share them, else by run."""
    lines = []
    for key in ORIGIN:
        values: dict[str, list[str]] = {}
        for record in (record for row in rows for record in row.records):
            values.setdefault(_origin_of(record, key), []).append(record.meta["name"])
        shown = "; ".join(inline(v if len(values) == 1 else f"{v} ({', '.join(names)})") for v, names in values.items())
        lines.append(f"- {key}: {shown}")
    for record in (record for row in rows for record in row.records if record.code_versions > 1):
        of = f"its rounds were trained by {record.code_versions} versions of the code"
        lines.append(f"- {inline(record.meta['name'])}: {of}")
    identities = ", ".join(f"{inline(r.meta['name'])} {code(r.meta['identity'])}" for row in rows for r in row.records)
    return "\n".join([*lines, f"- records: {identities}"]) + "\n"


def _origin_of(record: Record, key: str) -> str:
    """Of each session that trained it, where they differ."""
    sessions = [record.meta, *record.meta.get("sessions", [])]
    values = [session.get(key, session.get("environment", {}).get(key)) for session in sessions]
    return ", then ".join(dict.fromkeys("unknown" if value is None else str(value) for value in values))


def _left_out(chosen: Chosen) -> list[str]:
    """The runs in no table: named with the reason, so that nothing disappears."""
    lines = [_unfinished(record) for record in chosen.left]
    lines += [f"- {inline(problem)}" for problem in (*chosen.damaged, *chosen.copies)]
    return ["## In no table\n", "\n".join(lines) + "\n"] if lines else []


def _unfinished(record: Record) -> str:
    status, meta = record.status, record.meta
    why = f": {inline(status['error'])}" if status.get("error") else ""
    done = f"{status['rounds']} of {inline(status.get('target'))} rounds"
    return f"- {inline(meta['name'])} {code(meta['identity'])}: {inline(status['status'])} after {done}{why}"


def _listing(values: dict[str, Any]) -> str:
    """The flat config, a line a group."""
    groups: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        groups.setdefault(key.rpartition(".")[0] or "other", {})[key] = value
    return "\n".join(f"- {inline(head)}: {_pairs(group)}" for head, group in groups.items()) + "\n"


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(code(f"{k}={as_override(v)}") for k, v in values.items())
