"""LEAF's character model (Caldas et al. 2018, https://arxiv.org/abs/1812.01097; stacked_lstm.py in its code).

Character embeddings, two LSTM layers (Hochreiter and Schmidhuber 1997), and a linear layer from the last state to the
next character. Texts of words that are filled up with id 0 need model.padding=first, which puts these before the text:
the last state has forgotten a text after which many steps of padding follow.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pflsweep.models.blocks import model_of, require_padding, require_texts, require_token_ids

FAMILY = "recurrent"
PADDING = ("none", "first")  # values of model.padding


class Words(nn.Embedding):
    """Token embedding. x [B, L] token ids -> [B, L, dim].

    padded: the ids 0 at the end of a row are padding. They are moved to its beginning, as vectors of zeros.
    """

    def __init__(self, vocabulary: int, dim: int, padded: bool = False) -> None:
        super().__init__(vocabulary, dim)
        self.padded = padded

    def forward(self, x: Tensor) -> Tensor:
        """Return the vectors of token ids. Raises UserError on numbers that are no token ids."""
        require_token_ids("char_lstm", x)
        if not self.padded:
            return super().forward(x)
        places = torch.arange(1, x.shape[1] + 1, device=x.device)
        words = torch.where(x != 0, places, 0).amax(1, keepdim=True)  # [B, 1] of each text
        at = places + words - x.shape[1]  # the number, from 1 on, of the word that comes to each place
        vectors = super().forward(x.gather(1, (at - 1).clamp(min=0)))
        return vectors * (at > 0)[..., None]


class Lstm(nn.Module):
    """One LSTM layer. x [B, L, D] -> its states [B, L, H], or with `last` the last state [B, H].

    It is written out since nn.LSTM has no rule for torch.func.vmap. The gates are input, forget, cell and output, in
    nn.LSTM's order and with its initial weights, but with one bias instead of two. The forget gate's bias starts 1
    higher, as in the TensorFlow cell that LEAF uses.
    """

    def __init__(self, inputs: int, hidden: int, last: bool = False) -> None:
        super().__init__()
        self.hidden, self.last = hidden, last
        bound = hidden**-0.5
        self.weight_ih = nn.Parameter(torch.empty(4 * hidden, inputs).uniform_(-bound, bound))
        self.weight_hh = nn.Parameter(torch.empty(4 * hidden, hidden).uniform_(-bound, bound))
        bias = torch.empty(4 * hidden).uniform_(-bound, bound)
        bias[hidden : 2 * hidden] += 1
        self.bias = nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        # the input's part is one product for all steps; the loop computes what depends on the last state
        given = nn.functional.linear(x, self.weight_ih, self.bias)
        state = cell = given.new_zeros(given.shape[0], self.hidden)
        recurrent = self.weight_hh.t()
        states = []
        for step in given.unbind(1):
            into, forget, new, out = (step + state @ recurrent).chunk(4, -1)
            cell = forget.sigmoid() * cell + into.sigmoid() * new.tanh()
            state = out.sigmoid() * cell.tanh()
            states.append(state)
        return state if self.last else torch.stack(states, 1)

    def extra_repr(self) -> str:
        return f"{self.weight_ih.shape[1]}, {self.hidden}, last={self.last}"


def build(
    shape: Sequence[int], classes: int, vocabulary: int, dim: int, hidden: int, padding: str = "none"
) -> nn.Sequential:
    """Return blocks words, lstm1, lstm2, head. x [B, L] int32 or int64 token ids below `vocabulary` -> [B, classes].

    padding: one of PADDING. Weights come from torch's global generator. Raises UserError if a row is not a sequence, on
    numbers below 1, and on another padding.
    """
    require_texts("char_lstm", shape, {"vocabulary": vocabulary, "dim": dim, "hidden": hidden})
    require_padding(padding, PADDING)
    return model_of(
        words=Words(vocabulary, dim, padded=padding == "first"),
        lstm1=Lstm(dim, hidden),
        lstm2=Lstm(hidden, hidden, last=True),
        head=nn.Linear(hidden, classes),
    )
