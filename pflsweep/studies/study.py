"""The base of studies. A study observes a running simulation, changes nothing in it, and returns one table."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pandas as pd
from torch import Tensor

from pflsweep.engine.simulation import Simulation
from pflsweep.methods.protocol import Method, Plugin
from pflsweep.ops.vmap import own_copy
from pflsweep.util.errors import UserError


@dataclass(kw_only=True, eq=False)
class Study:
    """Base class of studies. Options are fields.

    The simulation is given to `check`, then to `look` before the first round and after each, and to `table` at the end.
    Its verbs are pure, so that a study may call them. What a study collects is saved in checkpoints by `state` and
    restored by `load`.
    """

    method: Method
    plugins: tuple[Plugin, ...]  # those that are combined with the method, without the method's own

    kind: ClassVar[str] = "study"  # as in Method
    version: ClassVar[int] = 1  # raised when the table's numbers change; part of a trial's identity
    # Studies look at certain shares of the rounds, or at the last one: with more rounds these would be others.
    resumable: ClassVar[bool] = False

    def check(self, simulation: Simulation) -> None:
        """Raise UserError if the simulation has nothing to observe."""

    def look(self, simulation: Simulation) -> None:
        """Observe the simulation. It is called before the first round and after each."""

    def table(self, simulation: Simulation) -> pd.DataFrame:
        """Return what has been observed. It is called once, after the last round."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint saves: tensors, numbers and text only."""
        return {}

    def load(self, state: dict[str, Any], simulation: Simulation) -> None:
        """Restore what `state` returned. simulation: as it was at that moment."""


def require_client(client: int, simulation: Simulation) -> None:
    """Raise UserError if the federation has no such client, or an attack makes it malicious."""
    if client >= simulation.federation.clients:
        raise UserError(
            f"study.client is {client}, but the clients are 0 to {simulation.federation.clients - 1}: name one of them."
        )
    malicious = simulation.verbs.malicious
    if malicious is not None and malicious[client]:
        honest = int(malicious.int().argmin())
        raise UserError(
            f"study.client is {client}, which the attack makes malicious, and its uploads are forged: name an honest "
            f"client, such as {honest}."
        )


def next_turn(simulation: Simulation, client: int) -> tuple[Tensor, Tensor]:
    """Return a client's model [P] at the start and at the end of its local training in the next round.

    It trains as if it were in the cohort, and the simulation does not change. Raises UserError unless the method trains
    one whole model, the field `w` of its work, and sends it as `w`.
    """
    ids = simulation.last.new_tensor([client])
    given, data = simulation.next_turn(ids)
    work = own_copy(simulation.verbs.start(given, data))
    if simulation.optimisers is not None:
        simulation.optimisers.resume(ids, work)
    # `inner` is the method's own work where ALA wraps it. A copy, since training may write into the work.
    start = _whole(getattr(work, "inner", work), simulation).clone()
    up, _ = simulation.verbs.finish(given, data, simulation.verbs.fit(given, data, work))
    return start, _whole(up, simulation)


def _whole(state: Any, simulation: Simulation) -> Tensor:
    """Return the model [P] of the one client in a work or a message. Raises UserError if it has none."""
    w = getattr(state, "w", None)
    if w is None or w.shape != (1, simulation.task.size):
        raise UserError(
            f"A study of a client's models needs a method whose clients train one whole model and send it, such as "
            f"fedala; here {type(state).__name__} has none."
        )
    return w[0]
