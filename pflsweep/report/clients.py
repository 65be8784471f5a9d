"""A table of what each client of a partition holds, from a record's partition table."""

import pandas as pd

from pflsweep.data.partition.stats import emd

SPLITS = ["train", "validation", "test"]


def holdings(partition: pd.DataFrame) -> pd.DataFrame:
    """Return one line per client: its group (if any), samples of each split, classes and EMD of its training rows."""
    counts = partition.pivot_table("train", "client", "class", aggfunc="sum", fill_value=0)
    sizes = partition.groupby("client")[SPLITS].sum()
    table = sizes.assign(classes=(counts > 0).sum(axis=1), emd=emd(counts.to_numpy()).round(4))
    if "group" in partition:
        table.insert(0, "group", partition.groupby("client")["group"].first())
    return table
