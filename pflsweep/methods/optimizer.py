"""SGD on flat vectors: what `self.opt` is in every method."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pflsweep.methods.task import Batch, Task
from pflsweep.ops.vmap import vmapped

WHOLE = slice(None)


@dataclass(frozen=True)
class Sgd:
    """torch.optim.SGD's update (heavy ball, no damping) on a flat vector or a part of one.

    The state is the momentum buffer, of w's shape; without momentum it has no elements.
    """

    momentum: float
    weight_decay: float

    def init(self, w: Tensor) -> Tensor:
        """A fresh state for w [C, P]: zeros."""
        return w.new_zeros(w.shape if self.momentum else (w.shape[0], 0))

    def update(
        self, w: Tensor, state: Tensor, g: Tensor, lr: float | Tensor, part: slice = WHOLE
    ) -> tuple[Tensor, Tensor]:
        """One step of w, or of a part of it alone, along gradient g (of the part): new (w, state).

        Writes into w and state, which the engine owns, where it can. Momentum and weight decay spare the rest of w.
        Starting from zero, momentum * 0 + g is g: the first step needs no case of its own.
        """
        if not vmapped():
            self._step(w[part], state, g, lr)
            return w, state
        here = w[part]  # a client out of batches must be able to keep its old values
        if self.weight_decay:
            g = g + self.weight_decay * here
        state = self.momentum * state + g if self.momentum else state
        here = here - lr * (state if self.momentum else g)
        return here if part is WHOLE else torch.cat([w[: part.start], here, w[part.stop :]]), state

    def descend(self, task: Task, w: Tensor, state: Tensor, batch: Batch, lr: float | Tensor) -> tuple[Tensor, Tensor]:
        """`update` along the gradient of the batch's mean loss, parameter by parameter where nothing needs a vector."""
        if task.is_joined(batch):
            return self.update(w, state, task.grad(w, batch), lr)
        pieces = task.views(w)
        states = task.views(state) if self.momentum else pieces
        for name, g in task.grads(w, batch).items():
            self._step(pieces[name], states[name], g, lr)
        return w, state

    def _step(self, here: Tensor, state: Tensor, g: Tensor, lr: float | Tensor) -> None:
        """In place; without momentum no state is touched."""
        if self.weight_decay:
            g = g + self.weight_decay * here
        if self.momentum:
            g = state.mul_(self.momentum).add_(g)
        here.sub_(g, alpha=lr) if isinstance(lr, float) else here.sub_(lr * g)
