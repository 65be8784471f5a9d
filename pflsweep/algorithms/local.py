"""Local: every client trains alone."""

from dataclasses import dataclass

from pflsweep.methods import stock
from pflsweep.methods.protocol import Method


@dataclass(frozen=True, kw_only=True)
class Local(Method):
    """No federation: the baseline that a personalised method has to beat.

    A client trains only in rounds in which it is sampled, as with all other methods.
    """

    paper = "baseline"
    supports_per_client_lr = True
    unsampled_model = "the common initial model"
    cost = "nothing beside local training; a client keeps P"
    dp_incompatible_reason = ""

    init = stock.stateless_server
    init_client = stock.own_model
    send = stock.send_nothing
    start = stock.start_from_own
    step = stock.sgd_step
    fit = stock.local_epochs
    finish = stock.keep_own
    aggregate = stock.keep_server
    personal = stock.personal_is_own
    global_model = stock.no_global_model
