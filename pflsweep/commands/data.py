"""`pflsweep data prepare|show [KEY=VALUE ...]`: fetch a dataset; show what each client would hold, without training."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pflsweep.commands.parser import Parser
from pflsweep.util import files
from pflsweep.util.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

    from pflsweep.config.compose import Config

KINDS = ("png", "svg", "pdf")  # of pictures


def main(argv: list[str]) -> int:
    """Run `prepare` or `show`. Raises UserError on bad input."""
    options = _parser().parse_args(argv or ["--help"])
    return int(options.run(options))


def _config(options: argparse.Namespace, word: str) -> "Config":
    """Compose and check the config of a trial. word: the command, for messages. Raises UserError."""
    from pflsweep.config.compose import compose
    from pflsweep.config.hydra_errors import SweepOnly
    from pflsweep.config.schema import check

    stray = next((word for word in options.overrides if "=" not in word), None)
    if stray is not None:
        raise UserError(f"data {word}: '{stray}' is not key=value, as in dataset=digits partition=iid.")
    try:
        config = compose(options.overrides, options.config_dir)
    except SweepOnly as error:
        mend = "give it once for each value" if error.several else "leave the key out"
        raise UserError(f"data {word}: {error.what}, and this command is for the data of one trial: {mend}.") from error
    check(config)
    return config


def _prepare(options: argparse.Namespace) -> int:
    """Fetch a dataset where it is missing, prepare it for later trials, and print what is in it."""
    from pflsweep.config.keys import put
    from pflsweep.data.datasets.files import find_root
    from pflsweep.trial.build import build_dataset

    config = _config(options, "prepare")
    put(config.values, "data.download", True)
    dataset = build_dataset(config)
    tested, owners = len(dataset.y) - dataset.train, dataset.owner_count
    rows = (
        f"{dataset.train:,} training and {tested:,} test rows" if tested else f"{dataset.train:,} rows without a split"
    )
    each = f"{dataset.shape[0]} tokens" if dataset.vocabulary else "x".join(map(str, dataset.shape))
    clients = f", {owners:,} clients or domains of its own" if owners else ""
    print(f"{dataset.name}: {rows} of {each}, {dataset.classes} classes{clients}")
    print(f"checksum {dataset.checksum}; data folder {find_root(config.data.root)}")
    return 0


def _show(options: argparse.Namespace) -> int:
    """Print one line per client, and write a picture of the clients' labels."""
    from pflsweep.trial.build import build_federation

    config = _config(options, "show")
    federation, new = build_federation(config)

    from pflsweep.report.clients import holdings
    from pflsweep.trial.tables import partition_table

    chosen = f"{config.choices['dataset']}-{config.choices['partition']}-{config.seed}"
    table = partition_table(federation)
    print(f"{holdings(table).reset_index().to_string(index=False)}\n\n{_line(federation.statistics())}")
    if new is not None:
        print(f"{new.clients} more clients do not train (data.new)")
    print(_draw(table, chosen, options.out or Path(f"{chosen}.png")))
    return 0


def _line(found: dict[str, float]) -> str:
    """Return a federation's statistics as a sentence."""
    text = (
        "{clients} clients with {size_mean:.1f} training samples (std {size_std:.1f}, {size_min} to {size_max}) of "
        "{classes_mean:.1f} classes ({classes_min} to {classes_max}); EMD {emd:.2f}, {emd_code:.2f} as FedFomo's code "
        "counts it"
    )
    learnt = "; the embedder's test accuracy is {embedder_accuracy:.2%}" if "embedder_accuracy" in found else ""
    return (text + learnt).format(**found)


def _draw(table: "pd.DataFrame", name: str, path: Path) -> Path:
    """Write the picture of a partition's labels. Raises UserError if the file cannot be written."""
    from pflsweep.report import figures, style

    made = figures.labels(table, f"Training labels, {name}")
    with files.writing(path.parent, "--out FILE"):
        return style.save(made, path.with_suffix(""), (path.suffix[1:],))[0]


def _picture(name: str) -> Path:
    """Parse the argument --out."""
    if Path(name).suffix[1:] not in KINDS:
        raise argparse.ArgumentTypeError(f"'{name}' has to end in {', '.join(f'.{kind}' for kind in KINDS)}")
    return Path(name)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="pflsweep data", description="What a federation holds.")
    words = parser.add_subparsers(required=True, metavar="WHAT")
    about = "Fetch a dataset where it is missing, check it, prepare it for later trials. Keys as for a trial."
    prepare = words.add_parser("prepare", help="a dataset, fetched and checked", description=about)
    about = "One line per client: samples, classes, EMD; and a picture. Keys as for a trial."
    show = words.add_parser("show", help="the clients of a partition, without training", description=about)
    show.add_argument("--out", type=_picture, metavar="FILE", help="the picture (DATASET-PARTITION-SEED.png)")
    for word, run in ((prepare, _prepare), (show, _show)):
        word.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="such as dataset=digits partition=iid")
        word.add_argument("--config-dir", "-cd", default=None, help="a folder with options of your own")
        word.set_defaults(run=run)
    return parser
