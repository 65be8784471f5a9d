"""SGD on flat vectors: what `self.opt` is in every method."""

from dataclasses import dataclass

from torch import Tensor

from pflsweep.engine.lift import vmapped


@dataclass(frozen=True)
class Sgd:
    """torch.optim.SGD's update (heavy ball, no damping) on a flat vector or a part of one.

    The state is the momentum buffer, of w's shape; without momentum it has no elements.
    """

    momentum: float
    weight_decay: float

    def init(self, w: Tensor) -> Tensor:
        """A fresh state for w [C, P]."""
        return w.new_zeros(w.shape if self.momentum else (w.shape[0], 0))

    def update(self, w: Tensor, state: Tensor, g: Tensor, lr: float | Tensor) -> tuple[Tensor, Tensor]:
        """One step along gradient g: new (w, state). Writes into w and state, which the engine owns, where it can.

        Starting from zero, momentum * 0 + g is g: the first step needs no case of its own.
        """
        if self.weight_decay:
            g = g + self.weight_decay * w
        if vmapped():  # a client out of batches must be able to keep its old values
            state = self.momentum * state + g if self.momentum else state
            return w - lr * (state if self.momentum else g), state
        if self.momentum:
            g = state.mul_(self.momentum).add_(g)
        return w.sub_(g, alpha=lr) if isinstance(lr, float) else w.sub_(lr * g), state
