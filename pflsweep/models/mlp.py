"""Multi-layer perceptron: in-200-200-K in McMahan et al. 2017; logistic regression if it has no hidden layer."""

import math
from collections.abc import Sequence

from torch import nn

from pflsweep.models.blocks import model_of
from pflsweep.models.layers import Linear
from pflsweep.util.errors import UserError

FAMILY = "dense"


def build(shape: Sequence[int], classes: int, hidden: Sequence[int]) -> nn.Sequential:
    """Return blocks fc1, fc2, ..., head. x [B, *shape] -> [B, classes]. Weights come from torch's global generator.

    hidden: the width of each hidden layer. Raises UserError on a width below 1.
    """
    if any(width < 1 for width in hidden):
        raise UserError(f"model.hidden is {list(hidden)}: each width must be at least 1 ([] for no hidden layer).")
    width = math.prod(shape)
    blocks: dict[str, nn.Module] = {} if hidden else {"flatten": nn.Flatten()}
    for number, wider in enumerate(hidden, 1):
        flatten = [nn.Flatten()] if number == 1 else []
        blocks[f"fc{number}"] = nn.Sequential(*flatten, Linear(width, wider), nn.ReLU())
        width = wider
    return model_of(**blocks, head=nn.Linear(width, classes))
