"""Study: the path of one client's model on its loss surface, with ALA and without (figure 4 of FedALA).

J. Zhang, Y. Hua, H. Wang, T. Song, Z. Xue, R. Ma and H. Guan, "FedALA: Adaptive Local Aggregation for Personalized
Federated Learning", AAAI 2023, https://arxiv.org/abs/2212.01197. The picture follows H. Li, Z. Xu, G. Taylor,
C. Studer and T. Goldstein, "Visualizing the Loss Landscape of Neural Nets", NeurIPS 2018,
https://arxiv.org/abs/1712.09913, section 7.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from pflsweep.engine.evaluate import OWN, Targets, score, targets
from pflsweep.engine.simulation import Simulation
from pflsweep.methods.protocol import Verbs, hyper
from pflsweep.plugins.ala import Mixing
from pflsweep.studies.study import Study, next_turn, require_client
from pflsweep.util.errors import UserError

SERIES, ENDS = ("with", "without"), ("start", "end")


@dataclass(kw_only=True, eq=False)
class Trajectory(Study):
    """The path of a client's model with ALA and without, in the plane of its two principal components.

    The trial trains with ALA, which is idle in the first rounds. From ALA's first round on the study also trains a copy
    of the simulation in which ALA stays idle; for FedALA that is FedAvg. Both paths begin at one point, have the same
    draws, and lie over one plane: the two principal components of all models that are shown.

    The client's models at the start and at the end of local training in each round are kept until the end, and in
    checkpoints: up to four models of P numbers a round. The surface is the mean loss on the client's training rows, on
    a grid in the plane. The grid reaches beyond the models on each side by a share `margin` of their extent.

    The table has three kinds of rows, by its column `what`:
    - axis: c1 and c2 are the shares of the models' variance along the two axes.
    - point: series (with, without), round, at (start, end), ala (whether it acts in this round), c1, c2, and the loss
      of the model itself, which need not lie in the plane.
    - surface: c1, c2, loss.
    """

    client: int = hyper("whose model", low=0)
    since: float = hyper("the first round that is shown, as a share of all", low=0, high=1)
    grid: int = hyper("points of the surface along each axis", low=2)
    margin: float = hyper("of the surface around the models", low=0)

    def __post_init__(self) -> None:
        self.rounds: list[Tensor] = []  # for each round that is shown [1 or 2, 2, P]: by series, and by start and end
        self.other: Simulation | None = None  # the copy in which ALA stays idle, from ALA's first round on

    def check(self, simulation: Simulation) -> None:
        require_client(self.client, simulation)
        if not any(isinstance(part, Mixing) for part in (self.method, *self.plugins)):
            raise UserError(
                "study=trajectory compares a method with ALA to the same without: use it with algorithm=fedala, or "
                "with ala=on."
            )
        if simulation.schedule.rounds - self._first(simulation) < 1:
            raise UserError(
                f"study=trajectory shows the rounds {self._first(simulation)} to {simulation.schedule.rounds}: for a "
                "plane it takes two. Use more train.rounds, or a smaller study.since."
            )
        next_turn(simulation, self.client)  # a method that it refuses is refused now, not after hours

    def look(self, simulation: Simulation) -> None:
        if simulation.round == simulation.schedule.rounds:
            return
        if simulation.round >= self._idle(simulation):
            if self.other is None:
                self.other = self._forked(simulation)
            while self.other.round < simulation.round:
                next(self.other.run())
        if simulation.round + 1 >= self._first(simulation):
            both = [simulation] if self.other is None else [simulation, self.other]
            pairs = [torch.stack(next_turn(each, self.client)) for each in both]
            self.rounds.append(torch.stack(pairs).cpu())

    def table(self, simulation: Simulation) -> pd.DataFrame:
        plane = principal_plane(torch.cat([models.flatten(0, 1) for models in self.rounds]))
        axis = {"what": "axis", "c1": plane.shares[0], "c2": plane.shares[1]}
        found = targets(simulation.federation, "train", OWN)
        tables = [pd.DataFrame([axis]), self._points(simulation, plane, found), self._surface(simulation, plane, found)]
        return pd.concat(tables, ignore_index=True)

    def state(self) -> dict[str, Any]:
        other = {} if self.other is None else {"other": self.other.state()}
        return {"rounds": self.rounds, **other}

    def load(self, state: dict[str, Any], simulation: Simulation) -> None:
        self.rounds = list(state["rounds"])
        if "other" in state:
            self.other = self._forked(simulation)
            self.other.load(state["other"])

    def _first(self, simulation: Simulation) -> int:
        """Return the first round that is shown."""
        return max(1, int(self.since * simulation.schedule.rounds + 1e-9))

    def _idle(self, simulation: Simulation) -> int:
        """Return the number of rounds, the first ones, in which ALA is idle."""
        mixing = next(part for part in (self.method, *self.plugins) if isinstance(part, Mixing))
        return mixing.idle_rounds(simulation.schedule.rounds)

    def _forked(self, simulation: Simulation) -> Simulation:
        """Return a copy of the simulation in its present state, in which ALA is idle from here on."""
        method, *plugins = (
            replace(part, idle=1.0) if isinstance(part, Mixing) else part for part in (self.method, *self.plugins)
        )
        task, federation, schedule = simulation.task, simulation.federation, simulation.schedule
        silent = replace(schedule, eval_every=schedule.rounds + 1)
        verbs = Verbs.of(method, *plugins)  # type: ignore[arg-type]
        forked = Simulation(verbs, task, federation, silent, task.vector(task.model))
        forked.load(simulation.state())
        return forked

    def _points(self, simulation: Simulation, plane: "Plane", found: Targets) -> pd.DataFrame:
        """Return the rows `point` of the table."""
        rows, models = [], iter(plane.coordinates.tolist())
        first, idle = self._first(simulation), self._idle(simulation)
        for round, shown in enumerate(self.rounds, start=first):
            of_series = [
                [(at, *next(models), self._loss(simulation, w, found)) for at, w in zip(ENDS, pair, strict=True)]
                for pair in shown
            ]
            for series, points in zip(SERIES, (of_series[0], of_series[-1]), strict=True):
                rows += [(series, round, at, round > idle, c1, c2, loss) for at, c1, c2, loss in points]
        table = pd.DataFrame(rows, columns=["series", "round", "at", "ala", "c1", "c2", "loss"])
        return table.assign(what="point")

    def _surface(self, simulation: Simulation, plane: "Plane", found: Targets) -> pd.DataFrame:
        """Return the rows `surface` of the table."""
        low, high = plane.coordinates.min(0).values, plane.coordinates.max(0).values
        wide = (self.margin * (high - low)).clamp(min=1e-6)  # not 0, so that models that do not move have a surface
        c1, c2 = (
            torch.linspace(float(a), float(b), self.grid).tolist() for a, b in zip(low - wide, high + wide, strict=True)
        )

        def row(k: int) -> list[tuple[float, float, float]]:
            return [(x, c2[k], self._loss(simulation, plane.at(x, c2[k]), found)) for x in c1]

        rows = dict(simulation.workers.map("surface", [1.0] * self.grid, row))
        table = pd.DataFrame([point for k in range(self.grid) for point in rows[k]], columns=["c1", "c2", "loss"])
        return table.assign(what="surface")

    def _loss(self, simulation: Simulation, w: Tensor, found: Targets) -> float:
        """Return the mean loss of a model [P] over the client's training rows, which `found` has."""
        task, federation = simulation.task, simulation.federation
        pairs = [(self.client, w.to(federation.device))]
        seen = score(task, task.logits, pairs, federation, found, simulation.schedule.eval_batch)
        return float(seen["own"].loss[self.client])


class Plane(NamedTuple):
    """The plane through the mean of n models, along the two directions in which they differ most."""

    center: Tensor  # [P] mean of the models
    axes: Tensor  # [2, P] orthonormal directions
    coordinates: Tensor  # [n, 2] coordinates of the models
    shares: list[float]  # share of the models' variance along each axis

    def at(self, c1: float, c2: float) -> Tensor:
        """Return the model [P] at a point of the plane."""
        return self.center + c1 * self.axes[0] + c2 * self.axes[1]


def principal_plane(models: Tensor) -> Plane:
    """Return the plane of the two principal components of models [n, P], from their Gram matrix [n, n].

    Each axis points to the side of the model that is farthest along it. An axis along which no models differ is zero.
    """
    center = models.mean(0)
    apart = models - center
    values, vectors = torch.linalg.eigh((apart @ apart.T).double())
    values = values.clamp(min=0)
    top, lengths = vectors[:, -2:].flip(1), values[-2:].flip(0).sqrt()
    top = top * top.gather(0, top.abs().argmax(0, keepdim=True)).sign()
    axes = torch.where(lengths > 0, top / lengths, 0).to(models.dtype).T @ apart
    shares = values[-2:].flip(0) / values.sum() if values.sum() > 0 else values[:2]
    return Plane(center, axes, top * lengths, shares.tolist())
