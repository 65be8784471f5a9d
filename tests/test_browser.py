"""What a user sees of a sweep in a browser: MLflow's run list, the sweep's run with its pictures, a report's page."""

import json
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from pflsweep.commands.main import main
from tests.browser import Page, browser, program
from tests.tracking.test_run import empty  # noqa: F401 (a fixture)

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # MLflow's and SQLAlchemy's own
SWEEP = """\
seeds: [0]
search: tune=grid
settings:
  digits/clients4: >-
    dataset=digits partition=dirichlet partition.clients=4 model=mlp train.rounds=4 train.participation=1.0
    train.epochs=1
methods: {local: algorithm=local, fedavg: algorithm=fedavg}
space: {local: null, fedavg: {train.lr: {grid: [0.1, 0.03, 0.01]}}}
"""
LAYOUT = """\
title: Accuracy on digits with 4 clients (%)
sweeps: [own/table]
own_table: {name: own, rows: {local: Local, fedavg: FedAvg}, columns: {digits/clients4: 4 clients}}
metrics: {acc: {quantity: accuracy}}
figures: [curves]
"""
LARGE = "[...document.images].some(image => image.complete && image.naturalWidth > 300)"


class Seen(NamedTuple):
    folder: Path
    page: Page
    server: str
    listed: str  # the address that `pflsweep ui` has printed

    def link(self, pattern: str) -> str:
        """Return an address in the report's page, moved to the server that is running."""
        text = (self.folder / "reports/own/table/README.md").read_text()
        found = re.search(rf"\[`?{pattern}`?\]\((http://127\.0\.0\.1:5000)(/#/\S+)\)", text)
        assert found, text
        return self.server + found[2]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory, empty: Path) -> Iterator[Seen]:  # noqa: F811
    """Run and report a sweep with a search as a user would, and open a browser on `pflsweep ui`."""
    program()
    folder = tmp_path_factory.mktemp("seen")
    # Creating a store takes seconds
    shutil.copy(empty, folder / "mlflow.db")
    for name, content in (("sweeps/own/table.yaml", SWEEP), ("reports/layouts/own/table.yaml", LAYOUT)):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(content)
    with pytest.MonkeyPatch.context() as here:
        here.chdir(folder)
        for name in ("PFLSWEEP_SWEEP", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
            here.delenv(name, raising=False)
        for words in (["-m", "sweep=own/table"], ["report", "own/table"]):
            # In this process, since another one would take seconds for its imports
            assert main(words) == 0
        with _ui(folder) as (server, listed), browser(folder / "profile") as page:
            _reach(server)
            yield Seen(folder, page, server, listed)


@contextmanager
def _ui(folder: Path) -> Iterator[tuple[str, str]]:
    """Return the address of a server that may not be up yet, and the one that it prints."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "pflsweep", "ui", "--port", str(port), "--no-browser"]
    with open(folder / "ui.log", "wb") as out:
        ui = subprocess.Popen(command, cwd=folder, stdout=out)
    try:
        end = time.monotonic() + 60
        while not (said := re.search(r"http\S+", (folder / "ui.log").read_text())):
            assert time.monotonic() < end
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}", said[0]
    finally:
        ui.terminate()
        ui.wait()


def _reach(server: str) -> None:
    end = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(server).close()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


def has(text: str) -> str:
    return f"document.body.innerText.includes({text!r})"


def test_the_run_list_names_the_sweep_and_behind_its_plus_its_trials(seen: Seen) -> None:
    address = re.sub(r"runs/\w+", "runs", seen.link("own/table"))
    seen.page.open(address, has("own/table"))
    seen.page.wait("document.querySelector('.ag-row button') !== null")
    seen.page.ask("document.querySelector('.ag-row button').click()")
    seen.page.wait(has("fedavg digits/clients4 lr=0.1 seed=0 (search)"))
    assert seen.page.ask(has("local digits/clients4 seed=0"))
    seen.page.picture(seen.folder / "list.png")


def test_the_printed_address_lists_the_runs_with_accuracy_method_and_dataset(seen: Seen) -> None:
    seen.page.open(seen.listed, has("own/table"))
    seen.page.wait("document.querySelectorAll('.ag-row').length > 0")
    heads = "[...document.querySelectorAll('.ag-header-cell')].map(cell => cell.innerText.trim())"
    seen.page.wait(f"{heads}.includes('summary/accuracy')")
    assert {"Run Name", "summary/accuracy", "method", "dataset"} <= {*seen.page.ask(heads)}
    row = seen.page.ask("[...document.querySelectorAll('.ag-row')].map(row => row.innerText).join(' ')")
    assert re.search(r"0\.\d+.*local, fedavg.*digits", row, re.DOTALL), row
    assert seen.page.ask(has("Personalised federated learning, trained by pflsweep"))
    assert not seen.page.ask(has("Error loading shared view"))
    seen.page.picture(seen.folder / "listed.png")


def test_the_charts_show_the_sweep_before_its_trials_are_unfolded(seen: Seen) -> None:
    address = f"{seen.listed.partition('?')[0]}?workflowType=machine_learning&compareRunsMode=CHART"
    seen.page.open(address, has("accuracy/fedavg"))
    seen.page.wait("document.querySelectorAll('.js-plotly-plot .points path').length >= 8")
    seen.page.picture(seen.folder / "charts.png")


def test_links_and_the_picture_of_a_description_work(seen: Seen) -> None:
    address, _, end = seen.link("own/table").partition("?")
    seen.page.open(f"{address}?{end}", has("Comparison of its runs"))
    table = "[...document.querySelectorAll('table')].map(table => table.innerText).join(' ')"
    seen.page.wait(f"{table}.includes('chosen hyperparameters')")
    seen.page.wait("[...document.images].some(i => i.src.includes('get-artifact') && i.naturalWidth > 300)")
    links = seen.page.ask("[...document.links].filter(a => a.href.includes('/artifacts/')).map(a => a.href)")
    assert len({*links}) == 2, links
    seen.page.picture(seen.folder / "description.png")
    for link in links:
        assert link.startswith(seen.server)
        seen.page.open(link, "document.querySelector('iframe')?.src")


def test_a_trials_run_has_its_data_and_its_models(seen: Seen) -> None:
    (ledger,) = (seen.folder / "runs/sweeps").glob("*.json")
    group = next(group for group in json.loads(ledger.read_text())["groups"] if group["method"] == "fedavg")
    seen.page.open(seen.link(group["trials"]["0"]), has("Logged models (1)"))
    assert seen.page.ask("/digits \\([0-9a-f]+\\)/.test(document.body.innerText)")
    assert seen.page.ask("[...document.links].every(a => !a.href.startsWith('file:'))")
    seen.page.picture(seen.folder / "trial.png")


def test_the_sweeps_run_has_its_pictures(seen: Seen) -> None:
    address, _, end = seen.link("own/table").partition("?")
    seen.page.open(f"{address}?{end}", has("Report own/table"))
    assert seen.page.ask(has("Comparison of its runs"))
    seen.page.picture(seen.folder / "sweep.png")
    for picture in ("search/fedavg/digits-clients4.png", "reports/own/table/curves.png"):
        seen.page.open(f"{address}/artifacts/{picture}?{end}", LARGE)


def test_a_trials_run_has_its_curves(seen: Seen) -> None:
    """For four rounds, the chart of each metric has four points."""
    (ledger,) = (seen.folder / "runs/sweeps").glob("*.json")
    group = next(group for group in json.loads(ledger.read_text())["groups"] if group["method"] == "fedavg")
    address, _, end = seen.link(group["trials"]["0"]).partition("?")
    seen.page.open(f"{address}/model-metrics?{end}", has("accuracy"))
    seen.page.wait("document.querySelectorAll('.js-plotly-plot .points path').length >= 4")
    seen.page.picture(seen.folder / "curves.png")


def test_a_reports_page_shows_table_and_figures(seen: Seen) -> None:
    seen.page.open((seen.folder / "reports/own/table/page.html").as_uri(), LARGE)
    assert seen.page.ask("document.title") == "own/table: Accuracy on digits with 4 clients (%)"
    # The verdict above is a list, so the first table is the page's own
    rows = seen.page.ask("[...document.querySelectorAll('table')[0].rows].map(row => row.innerText).join(' ')")
    assert re.search(r"Local\s+\d\d\.\d\d\s+FedAvg\s+\d\d\.\d\d", rows), rows
    assert seen.page.ask("[...document.images].every(image => image.naturalWidth > 300)")
    assert not seen.page.ask(has("Links do nothing in this frame"))
    seen.page.picture(seen.folder / "page.png")


def test_mlflow_shows_the_page_with_its_figures(seen: Seen) -> None:
    address, _, end = seen.link("own/table").partition("?")
    address += "/artifacts/reports/own/table/page.html"
    seen.page.open(f"{address}?{end}", "document.querySelector('iframe')?.src")
    shown = seen.page.ask("fetch(document.querySelector('iframe').src).then(answer => answer.text())")
    assert shown == (seen.folder / "reports/own/table/page.html").read_text()
    assert 'src="data:image/svg+xml;base64,' in shown
    assert seen.page.ask_frame(has("Links do nothing in this frame: right-click one"))
    seen.page.picture(seen.folder / "mlflow.png")
