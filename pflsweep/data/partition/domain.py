"""Each client has rows of one domain: label skew within domains, feature skew between them (PGFed's Office-Home)."""

import numpy as np

from pflsweep.data.dataset import Dataset, Rows
from pflsweep.data.partition.common import check_alpha, check_owner, labels, pooled, require
from pflsweep.data.partition.dirichlet import skewed
from pflsweep.ops.random import generator


def split(
    dataset: Dataset,
    seed: int,
    clients: int,
    alpha: float,
    least: int,
    tries: int,
    test_fraction: float,
    column: str | None = None,
) -> Rows:
    """Return a partition that cuts each domain among clients / domains consecutive clients, as dirichlet.by_class does.

    All rows are dealt. The domain of a row is its Dataset.owner. column: the dataset's column of domains, which its
    loader has read into Dataset.owner. Raises UserError on a dataset without domains, and on options that do not fit.
    """
    domains, domain = np.unique(check_owner(dataset, "domain", "domains"), return_inverse=True)
    names = [dataset.owners[k] if dataset.owners else str(k) for k in domains]
    check_alpha(alpha)
    rule = f"{dataset.name} has {len(names)} domains, each of as many clients: use a multiple of {len(names)}"
    require(clients >= 1 and clients % len(names) == 0, "clients", clients, rule)
    each = clients // len(names)
    parts = []
    for k, name in enumerate(names):
        rng = generator(seed, "partition domain", k)
        rows = rng.permutation(np.flatnonzero(domain == k))
        by_class = [rows[labels(dataset)[rows] == c] for c in range(dataset.classes)]
        parts += skewed(by_class, each, alpha, least, tries, rng, f"the {len(rows)} samples of domain {name}")
    return pooled(parts, test_fraction, seed)._replace(group=np.repeat(names, each))
