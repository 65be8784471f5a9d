"""What a study is: an instrument that looks at a running simulation, changes nothing of it, and leaves one table."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pandas as pd
from torch import Tensor

from pflsweep.engine.cohort import own
from pflsweep.engine.simulation import Simulation
from pflsweep.methods.protocol import Method, Plugin
from pflsweep.util.errors import UserError


@dataclass(kw_only=True, eq=False)
class Study:
    """Its options are its fields. `check`, `look` at every boundary of rounds, 0 to T, and `table` at the end get the
    simulation, whose verbs are pure, so that any of it can be tried out; what a study remembers on the way goes through
    `state` and `load`, as a checkpoint holds it.

    A study's moments are named as shares of the rounds or by the last one. So its trial does not go on to more rounds.
    """

    method: Method
    plugins: tuple[Plugin, ...]  # in front of the method, beside its own

    kind: ClassVar[str] = "study"  # as a method's
    version: ClassVar[int] = 1  # raised when the table's numbers change; part of a trial's identity
    resumable: ClassVar[bool] = False

    def check(self, simulation: Simulation) -> None:
        """Raises UserError where there would be nothing to see."""

    def look(self, simulation: Simulation) -> None:
        """Called before the first round and after each."""

    def table(self, simulation: Simulation) -> pd.DataFrame:
        """What has been seen. Called once, after the last round."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """Tensors, numbers and text only."""
        return {}

    def load(self, state: dict[str, Any], simulation: Simulation) -> None:
        """simulation: as it was when `state` was taken."""


def require_client(client: int, simulation: Simulation) -> None:
    """Raises UserError where the federation has no such client."""
    if client >= simulation.federation.clients:
        raise UserError(
            f"study.client is {client}, but the clients are 0 to {simulation.federation.clients - 1}: name one of them."
        )


def next_turn(simulation: Simulation, client: int) -> tuple[Tensor, Tensor]:
    """A client's model [P] at the start and at the end of its local training in the round to come, as if it were in the
    cohort. Nothing is kept of it. Raises UserError where the method does not train one whole model, `w` of its work,
    and send it as `w`.
    """
    ids = simulation.last.new_tensor([client])
    given, data = simulation.next_turn(ids)
    work = own(simulation.verbs.start(given, data))
    if simulation.optimisers is not None:
        simulation.optimisers.resume(ids, work)
    start = _whole(getattr(work, "inner", work), simulation).clone()  # training may write into it
    up, _ = simulation.verbs.finish(given, data, simulation.verbs.fit(given, data, work))
    return start, _whole(up, simulation)


def _whole(state: Any, simulation: Simulation) -> Tensor:
    """The one client's model in a work or a message."""
    w = getattr(state, "w", None)
    if w is None or w.shape != (1, simulation.task.size):
        raise UserError(
            f"A study of a client's models needs a method whose clients train one whole model and send it, such as "
            f"fedala; here {type(state).__name__} has none."
        )
    return w[0]
