"""Study: learning curves of ALA's weights in some of a trial's rounds (figure 3 of FedALA).

J. Zhang, Y. Hua, H. Wang, T. Song, Z. Xue, R. Ma and H. Guan, "FedALA: Adaptive Local Aggregation for Personalized
Federated Learning", AAAI 2023, https://arxiv.org/abs/2212.01197.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from pflsweep.engine.simulation import Simulation
from pflsweep.methods.protocol import hyper
from pflsweep.plugins.ala import Ala
from pflsweep.studies.study import Study, require_client
from pflsweep.util.errors import UserError


@dataclass(kw_only=True, eq=False)
class WeightLearning(Study):
    """The loss while one client's ALA weights learn for some epochs, in a few rounds.

    The weights start where the client's turn in the round begins. What they learn here is discarded, and the round
    continues unchanged. The paper does not state which rounds it shows. Here they are `curves` rounds, evenly spread,
    from ALA's first to the last; fewer where T is small. A round before which the client has had no turn is left out.
    The loss is the mean over the rows on which the weights learn, a share s of the local data.

    Columns of the table: round, epoch (0, which is before learning, to `weight_epochs`), loss.
    """

    client: int = hyper("whose weights", low=0)
    curves: int = hyper("rounds that are looked at", low=1)
    weight_epochs: int = hyper("for which the weights learn", low=1)

    def __post_init__(self) -> None:
        self.rows: list[list[float]] = []  # rows of the table: round, epoch, loss

    def check(self, simulation: Simulation) -> None:
        require_client(self.client, simulation)
        ala = self._ala()
        if not (ala.layers and ala.rate and ala.share):
            raise UserError("study=weight_learning: with ALA's layers, rate or share 0 no weight learns.")
        if not self._rounds(simulation):
            raise UserError(
                f"study=weight_learning looks at rounds that ALA begins, from 2 on, of which there is none: "
                f"train.rounds is {simulation.schedule.rounds}. Train more, or with a smaller `idle`."
            )
        down = simulation.next_turn(simulation.last.new_tensor([self.client]))[0].down
        if getattr(down, "w", simulation.last).shape[-1] != simulation.task.size:
            raise UserError("study=weight_learning needs a method that sends whole models, such as algorithm=fedala.")

    def look(self, simulation: Simulation) -> None:
        if simulation.round + 1 in self._rounds(simulation) and simulation.last[self.client] >= 0:
            given, data = simulation.next_turn(simulation.last.new_tensor([self.client]))
            for epoch, loss in enumerate(self._ala().curve(given, data, self.weight_epochs)):
                self.rows.append([simulation.round + 1, epoch, loss])

    def table(self, simulation: Simulation) -> pd.DataFrame:
        table = pd.DataFrame(self.rows, columns=["round", "epoch", "loss"])
        return table.astype({"round": int, "epoch": int, "loss": float})

    def state(self) -> dict[str, Any]:
        return {"rows": self.rows}

    def load(self, state: dict[str, Any], simulation: Simulation) -> None:
        self.rows = [list(row) for row in state["rows"]]

    def _ala(self) -> Ala:
        """Return the plug-in ALA of the method or beside it. Raises UserError if there is none."""
        for plugin in (*self.method.plugins(), *self.plugins):
            if isinstance(plugin, Ala):
                return plugin
        raise UserError("study=weight_learning looks at ALA's weights: use it with algorithm=fedala, or with ala=on.")

    def _rounds(self, simulation: Simulation) -> set[int]:
        """Return the rounds to look at, counted from 1. In round 1 no client has a model to mix."""
        total = simulation.schedule.rounds
        first = max(self._ala().idle_rounds(total) + 1, 2)
        return set() if first > total else {int(t) for t in np.linspace(first, total, self.curves).round()}
