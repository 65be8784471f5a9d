"""SGD on flat vectors: `self.opt` of every method."""

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
        """Return a fresh state for w [C, P]: zeros [C, P], or [C, 0] without momentum."""
        return w.new_zeros(w.shape if self.momentum else (w.shape[0], 0))

    def update(
        self, w: Tensor, state: Tensor, g: Tensor, lr: float | Tensor, part: slice = WHOLE
    ) -> tuple[Tensor, Tensor]:
        """Return w and state after one step along the gradient g. part: the slice of w that g and state belong to.

        Writes into w and state, which the engine owns, unless it runs under vmap. The rest of w gets neither momentum
        nor weight decay. A fresh state is zero, so that the first step's momentum * 0 + g is g.
        """
        if not vmapped():
            self._step(w[part], state, g, lr)
            return w, state
        # Not in place under vmap: a client of the chunk that is out of batches keeps its old values.
        here = w[part]
        if self.weight_decay:
            g = g + self.weight_decay * here
        state = self.momentum * state + g if self.momentum else state
        here = here - lr * (state if self.momentum else g)
        return here if part == WHOLE else torch.cat([w[: part.start], here, w[part.stop :]]), state

    def descend(self, task: Task, w: Tensor, state: Tensor, batch: Batch, lr: float | Tensor) -> tuple[Tensor, Tensor]:
        """Return w and state after one step along the gradient of the batch's mean loss.

        Where the gradient need not be one vector, w is updated parameter by parameter: that saves a pass over P.
        """
        if task.is_joined(batch):
            return self.update(w, state, task.grad(w, batch), lr)
        pieces = task.views(w)
        states = task.views(state) if self.momentum else pieces
        for name, g in task.grads(w, batch).items():
            self._step(pieces[name], states[name], g, lr)
        return w, state

    def _step(self, here: Tensor, state: Tensor, g: Tensor, lr: float | Tensor) -> None:
        """Update `here` and, with momentum, `state` in place."""
        if self.weight_decay:
            g = g + self.weight_decay * here
        if self.momentum:
            g = state.mul_(self.momentum).add_(g)
        here.sub_(g, alpha=lr) if isinstance(lr, float) else here.sub_(lr * g)
