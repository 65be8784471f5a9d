"""fastText (Joulin et al., EACL 2017, https://arxiv.org/abs/1607.01759): the mean of word vectors, then linear layers.

As in FedALA's public code there is no non-linearity: 3,157,508 parameters on AG News. That code counts padding in the
mean, as vectors of zeros (model.padding=counted); by default the mean is over the words alone.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from pflsweep.models.blocks import model_of, require_padding, require_texts, require_token_ids

PADDING = 0  # the token id that fills up short texts

FAMILY = "text"
COUNTS = ("skipped", "counted")  # values of model.padding


class MeanEmbedding(nn.Module):
    """The mean of a text's word vectors. x [B, L] token ids -> [B, dim]; zeros for an empty text.

    counted: padding counts as vectors of zeros, so the sum is divided by L; otherwise by the number of words.
    """

    def __init__(self, vocabulary: int, dim: int, counted: bool = False) -> None:
        super().__init__()
        self.words, self.counted = nn.Embedding(vocabulary, dim), counted

    def forward(self, x: Tensor) -> Tensor:
        """Return the mean vector of each text. Raises UserError on numbers that are no token ids."""
        require_token_ids("fasttext", x)
        vectors = self.words(x)
        word = (x != PADDING).to(vectors.dtype)
        total = (vectors * word[..., None]).sum(1)
        return total / x.shape[1] if self.counted else total / word.sum(1, keepdim=True).clamp(min=1)


def build(shape: Sequence[int], classes: int, vocabulary: int, dim: int, padding: str = "skipped") -> nn.Sequential:
    """Return blocks words, fc1, head. x [B, L] int32 or int64 token ids below `vocabulary` -> [B, classes].

    dim: the width of the word vectors and of fc1. padding: one of COUNTS. Weights come from torch's global generator.
    Raises UserError if a row is not a sequence, on numbers below 1, and on another padding.
    """
    require_texts("fasttext", shape, {"vocabulary": vocabulary, "dim": dim})
    require_padding(padding, COUNTS)
    words = MeanEmbedding(vocabulary, dim, counted=padding == "counted")
    return model_of(words=words, fc1=nn.Linear(dim, dim), head=nn.Linear(dim, classes))
