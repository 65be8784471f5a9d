"""List what made a table: commands, code and machines, and where its runs and records are."""

from typing import Any

from pflsweep.records.provenance import code_versions
from pflsweep.report.markdown import code, inline
from pflsweep.report.paper import missing
from pflsweep.report.paper.comparison import Comparison
from pflsweep.report.paper.links import Links
from pflsweep.report.paper.store import FinishedTrial
from pflsweep.util.errors import without_password


def lines(comparison: Comparison, links: Links) -> list[str]:
    """Return commands, code and machines, the MLflow store, and the records, as lines of markdown."""
    trials = comparison.trials
    commands = dict.fromkeys(command for cell in comparison.trials_by_cell for command in cell.commands)
    lines = [code(command) for command in commands]
    if not trials:
        return lines or [code(missing.command_of(comparison))]
    for key, values in {
        "commit": {str(m.get("commit") or "unknown") for t in trials for m in (t.meta, *t.meta.get("sessions", []))},
        "pflsweep": {str(t.meta.get("version")) for t in trials},
        "device": {str(t.meta.get("environment", {}).get("device")) for t in trials},
        "torch": {str(t.meta.get("environment", {}).get("torch")) for t in trials},
        "MLflow": {_store_of(t.config) for t in trials},
    }.items():
        lines.append(f"{key}: {', '.join(map(inline, sorted(values)))}")
    for trial in trials:
        if (versions := code_versions(trial.record)) > 1:
            named = f"{inline(trial.meta['name'])} {code(trial.identity)}"
            lines.append(f"{named}: its rounds were trained by {versions} versions of the code")
    own = {each.path.name: each.sweep for each in comparison.store.of(comparison.layout.sweeps)}
    tracked = [f"[{inline(own[name])}]({address})" for name, address in links.sweeps.items() if name in own]
    if tracked:
        lines.append(f"sweeps in MLflow, where `pflsweep ui` or its server shows them: {', '.join(tracked)}")
    lines.append(f"records in {code(comparison.store.trials.runs)}:")
    for cell in comparison.trials_by_cell:
        runs = ", ".join(f"seed {seed} {_named(trial, links)}" for seed, trial in cell.finished.items())
        if runs:
            lines.append(f"  - {inline(f'{cell.method} {cell.setting}')}: {runs}")
    return lines


def _named(trial: FinishedTrial, links: Links) -> str:
    address = links.runs.get(trial.identity)
    shown = code(trial.identity)
    return f"[{shown}]({address})" if address else shown


def _store_of(config: dict[str, Any]) -> str:
    """Return where a trial's MLflow run is, without a database's password; its name there is the record's."""
    if config.get("tracking.backend") == "none":
        return "not tracked"
    uri = without_password(config.get("tracking.uri") or "sqlite:///mlflow.db")
    return f"{uri}, experiment {config.get('tracking.experiment')}"
