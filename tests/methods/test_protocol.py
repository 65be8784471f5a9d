"""What a class of methods says of itself, and what a subclass with verbs of its own has to say anew."""

import pytest

from pflsweep.algorithms.fedavg import FedAvg
from pflsweep.algorithms.fedprox import FedProx
from pflsweep.config.compose import compose
from pflsweep.methods.protocol import unexamined
from pflsweep.trial.build import build
from pflsweep.util.errors import UserError
from tests.broken import SendsLabelCounts


class Renamed(FedAvg):
    """A subclass that changes nothing."""


def test_a_word_is_inherited_by_a_class_that_changes_no_verb_of_the_client() -> None:
    assert unexamined(FedAvg, "supports_per_client_lr") == ""
    assert unexamined(Renamed, "supports_per_client_lr") == ""
    assert unexamined(FedProx, "supports_per_client_lr") == "", "it has another step, and says it itself"
    assert unexamined(SendsLabelCounts, "supports_per_client_lr") == (
        "SendsLabelCounts has another `finish` than FedAvg, whose supports_per_client_lr it inherits: say "
        "supports_per_client_lr in SendsLabelCounts "
        "itself"
    )


@pytest.mark.parametrize(
    ("word", "attribute"),
    [
        ("train.lr_of=last_turn", "supports_per_client_lr"),
        ("ala=on", "supports_ala"),
        ("privacy=dp_sgd", "dp_incompatible_reason"),
    ],
)
def test_what_a_subclass_has_not_said_itself_is_refused(word: str, attribute: str) -> None:
    small = ["dataset=digits", "model=mlp", "partition.clients=4", word]
    config = compose(["algorithm=fedavg", *small])
    build(config)
    config.values["algorithm"]["_target_"] = "tests.broken.SendsLabelCounts"
    with pytest.raises(UserError, match=f"say {attribute} in SendsLabelCounts itself"):
        build(config)
