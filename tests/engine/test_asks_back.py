"""A method that asks back: every client of the cohort answers, and each question is counted in the traffic."""

from typing import Any

import pytest
import torch

from pflsweep.algorithms.fedavg import FedAvg
from pflsweep.conformance.case import Case, advance, sizes
from pflsweep.engine.communication import Traffic
from pflsweep.engine.simulation import Simulation
from pflsweep.util.errors import UserError
from tests.engine.asks_back import LineSearch, Question, Reply

ASKED: list[list[int]] = []


class Recording(LineSearch):
    """LineSearch that records which clients it asks."""

    def answer(self, given, data, question):
        ASKED[-1].extend(given.turn.ids.tolist())
        return super().answer(given, data, question)

    def aggregate(self, server, up, turn):
        conversation = super().aggregate(server, up, turn)
        replies: Any = None
        while True:
            ASKED.append([])
            try:
                question = conversation.send(replies)
            except StopIteration as end:
                return end.value
            replies = yield question


def simulation(lr: float, trials: int, chunk: int = 2, cls: type[LineSearch] = LineSearch) -> Simulation:
    def make(task, opt, epochs):
        return cls(task=task, opt=opt, epochs=epochs, trials=trials)

    return Case(make).simulation(lr=lr, participation=1.0, chunk=chunk)


@pytest.mark.parametrize("chunk", [1, 4, 6])
def test_the_whole_cohort_answers_each_question(chunk: int) -> None:
    ASKED.clear()
    result = next(simulation(lr=20.0, trials=5, chunk=chunk, cls=Recording).run())
    # The last entry marks the end
    questions = ASKED[:-1]
    assert len(questions) > 1
    assert all(asked == result.ids.tolist() for asked in questions)


@pytest.mark.parametrize(("lr", "asked"), [(0.05, 1), (1e9, 5)])
def test_questions_and_replies_are_counted(lr: float, asked: int) -> None:
    """A small step passes at once; large ones never do."""
    sim = simulation(lr, trials=5)
    model = sizes(sim).P
    assert next(sim.run()).traffic == Traffic(model + asked * model, model, 0, 1 + asked)


class AsksOneForAll(LineSearch):
    def aggregate(self, server, up, turn):
        yield Question(server.w)
        return server


class AnswersOneForAll(LineSearch):
    def answer(self, given, data, question):
        return Reply(super().answer(given, data, question).loss.mean())


@pytest.mark.parametrize("chunk", [1, 4])
@pytest.mark.parametrize(
    ("cls", "said"),
    [
        (AsksOneForAll, "`aggregate` of AsksOneForAll asked"),
        (AnswersOneForAll, "`answer` of AnswersOneForAll returned"),
    ],
)
def test_questions_and_replies_have_a_row_for_each_client(cls: type[LineSearch], said: str, chunk: int) -> None:
    """Cut along another axis, or broadcast, they would give wrong numbers without an error."""
    with pytest.raises(TypeError, match=rf"{said} \[.*\]: it must be \[\d, \.\.\.\], one row per client"):
        next(simulation(lr=0.1, trials=1, chunk=chunk, cls=cls).run())


class DrawsInAnswer(LineSearch):
    def answer(self, given, data, question):
        return Reply(super().answer(given, data, question).loss + torch.rand(()))


@pytest.mark.parametrize("workers", [1, 2])
def test_an_answer_that_draws_without_a_key_is_refused(workers: int) -> None:
    def make(task, opt, epochs):
        return DrawsInAnswer(task=task, opt=opt, epochs=epochs, trials=1)

    said = r"DrawsInAnswer draws from the global generator of PyTorch \(or seeds it\) in `answer`"
    with pytest.raises(UserError, match=said):
        next(Case(make, workers=workers).simulation(participation=1.0, chunk=2).run())


def test_a_step_that_nobody_likes_is_not_taken() -> None:
    sim = simulation(1e9, trials=3)
    before = sim.server.w.clone()
    assert torch.equal(advance(sim, 1).server.w, before)


def test_a_step_that_is_good_at_once_is_fedavgs() -> None:
    sim = advance(simulation(0.05, trials=3), 1)
    plain = Case(lambda task, opt, epochs: FedAvg(task=task, opt=opt, epochs=epochs))
    other = advance(plain.simulation(lr=0.05, participation=1.0), 1)
    torch.testing.assert_close(sim.server.w, other.server.w, rtol=1e-12, atol=1e-14)


def test_a_step_that_is_too_long_is_halved() -> None:
    ASKED.clear()
    sim = simulation(20.0, trials=8, cls=Recording)
    start = sim.server.w.clone()
    losses = [sim.evaluate("train")["global"].loss @ sim.federation.sizes.numpy()]
    advance(sim, 1)
    losses.append(sim.evaluate("train")["global"].loss @ sim.federation.sizes.numpy())
    assert 1 < len(ASKED) - 1 < 8
    assert losses[1] < losses[0]
    assert not torch.equal(sim.server.w, start)
