from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from pflsweep.algorithms import fedpg
from pflsweep.algorithms.fedpg import FedPG, Known, Losses, Personal, Server, TriedStep, Up, gram, unfairness
from pflsweep.engine.communication import Traffic
from pflsweep.methods import qp, stock
from pflsweep.ops.vmap import select
from pflsweep.util.errors import UserError
from tests.algorithms.helpers import EVERYBODY, NETWORK, Quadratic, by_hand, close, make, same_in_chunks, simulate

TASK, W0 = NETWORK
P = TASK.size
RATE = {
    "form": "rate",
    "gamma": None,
    "p_base": "after",
    "col_scale": "unify",
    "reference": "mean",
    "tau": None,
    "s": None,
    "beta": None,
}
MIX = {**RATE, "form": "mix", "gamma": 0.3}
SEARCH = {**RATE, "s": 1, "beta": 0.4}
# Random gradients predict more than a loss can fall
EASY = {**SEARCH, "beta": 1e-9}
M, H = 4, 3  # in the problems below


def vector(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


class Problem:
    """Conflicting gradients of M clients and H absent ones, with losses, and a method's result for them."""

    def __init__(self, seed, m=M, history=H, **changes):
        draw = torch.Generator().manual_seed(seed)
        self.m, self.method = m, make(FedPG, {**RATE, **changes})
        common = torch.randn(12, generator=draw, dtype=torch.float64)
        self.rows = 0.3 * common + torch.randn(m + history, 12, generator=draw, dtype=torch.float64)
        self.rows *= torch.rand(m + history, 1, generator=draw, dtype=torch.float64) * 5 + 0.2
        self.loss = torch.rand(m, generator=draw, dtype=torch.float64) + 0.1

    def solve(self):
        self.inner = gram(self.rows)
        self.h = self.method.fairness(self.loss, self.inner)
        self.step = self.method.direction(self.rows, self.inner, self.h, self.m)
        return self

    @property
    def columns(self):
        """Return the scaled Q, one column per row, with grad F as the last."""
        raw = torch.cat([self.rows, (self.h @ self.rows)[None]])
        scaled = self.rows[: self.m].norm(dim=1).mean() * raw / raw.norm(dim=1, keepdim=True)
        first = {"unify": 0, "code": self.m, "literal": len(raw)}[self.method.col_scale]
        return torch.cat([raw[:first], scaled[first:]])

    def personal(self):
        """Return what is added to d-hat, [m, 12]."""
        rate, e = self.method.personal_parts(self.rows, self.inner, self.step, self.m)
        own = self.rows[: self.m] / self.rows[: self.m].norm(dim=1, keepdim=True)
        return e if self.method.form == "mix" else -rate[:, None] * self.step.length * own


def others(problem, i):
    return torch.cat([problem.rows[:i], problem.rows[i + 1 :]])


@pytest.mark.parametrize("seed", range(3))
def test_h_is_the_gradient_of_unfairness(seed):
    loss = Problem(seed, 6).loss.requires_grad_()
    (wanted,) = torch.autograd.grad(-torch.cosine_similarity(loss, torch.ones_like(loss), dim=0), loss)
    h = fedpg.slope_of_unfairness(loss.detach())
    close(h, wanted)
    assert abs(h @ loss.detach()) < 1e-12
    close(unfairness(loss.detach()), -torch.cosine_similarity(loss.detach(), torch.ones(6).double(), dim=0))


@pytest.mark.parametrize("scale", ["unify", "code", "literal"])
@pytest.mark.parametrize("seed", range(4))
def test_the_step_descends_for_all(scale, seed):
    """Lemma 1: c_j . d <= -|d|^2 for the scaled columns, with equality on the support; d is in their hull."""
    problem = Problem(seed, col_scale=scale).solve()
    step = problem.step
    d = step.d / step.sigma
    along, square = problem.columns @ d, d @ d
    assert along.max() <= -square * (1 - 1e-6)
    held = along >= -square * (1 + 1e-6)
    weight = torch.linalg.lstsq(problem.columns[held].T, -d[:, None]).solution
    close(-(weight.T @ problem.columns[held])[0], d, 1e-8)
    assert float(weight.sum()) == pytest.approx(1)
    assert step.slope.max() < 0
    close(step.slope, problem.rows @ step.d)
    assert step.length == pytest.approx(float(step.d.norm())) == float(problem.rows[:M].mean(0).norm())
    if scale == "unify":
        lengths = problem.rows.norm(dim=1)
        assert (problem.rows @ d <= -square * lengths / lengths[:M].mean() * (1 - 1e-6)).all()


@pytest.mark.parametrize("seed", range(4))
def test_a_rate_stops_where_another_client_would_object(seed):
    problem = Problem(seed).solve()
    rates, own = problem.method.rates(problem.inner, problem.step, M), problem.step.d + problem.personal()
    assert (rates > 0).all()
    for i in range(M):
        worst = (others(problem, i) @ own[i]).max()
        assert worst <= 1e-9
        assert worst >= -1e-9 or rates[i] == 1
        assert problem.rows[i] @ own[i] < problem.step.slope[i]


def test_some_rates_are_bounded():
    rates = [p.method.rates(p.inner, p.step, M) for p in (Problem(seed).solve() for seed in range(4))]
    assert (torch.cat(rates) < 0.99).any()


@pytest.mark.parametrize("seed", range(4))
def test_without_gamma_a_mix_spares_the_others(seed):
    """p_i is the nearest to -g_i with c_j . p <= 0, found here by Hildreth's method, one constraint at a time."""
    problem = Problem(seed, form="mix", gamma=0.0).solve()
    e = problem.personal()
    for i in range(M):
        rest, g = others(problem, i), problem.rows[i]
        nu = torch.zeros(len(rest), dtype=torch.float64)
        for _ in range(500):
            for j, c in enumerate(rest):
                nu[j] = (nu[j] - c @ (g + nu @ rest) / (c @ c)).clamp(min=0)
        p = -(g + nu @ rest)
        assert (rest @ p).max() < 1e-9
        assert float(g @ p) == pytest.approx(-float(p @ p))
        close(e[i], p / p.norm() * problem.step.length, 1e-7)
        before = rest @ problem.step.d
        assert (rest @ (problem.step.d + e[i]) <= before + 1e-9).all()
        assert (before < 0).all()


def test_gamma_turns_a_model_towards_its_own_data():
    along = []
    for gamma in (0.0, 0.3, 0.6, 1.0):
        problem = Problem(1, form="mix", gamma=gamma).solve()
        e = problem.personal()
        close(e.norm(dim=1), [problem.step.length] * M)
        along.append((e * problem.rows[:M]).sum(1))
    assert all((later <= sooner + 1e-12).all() for sooner, later in pairwise(along))
    close(along[-1], -problem.rows[:M].norm(dim=1) * problem.step.length)
    assert (along[-1] < along[0] - 1e-3).any()


def test_a_client_held_on_all_sides_stays():
    problem = Problem(0, m=2, history=0, form="mix", gamma=0.0)
    problem.rows = torch.stack([vector(1.0, 0.0, 2.0), vector(-1.0, 0.0, -2.0)])
    inner = gram(problem.rows)
    step = fedpg.Direction(vector(0.0, 1.0, 0.0), 1.0, vector(-1.0, -1.0), 1.0)
    close(problem.method.mixed(problem.rows, inner, step, 2), torch.zeros(2, 3).double())
    mixed = make(FedPG, MIX).mixed(problem.rows, inner, step, 2)
    close(mixed, -problem.rows / 5**0.5)
    problem = Problem(1, form="mix", gamma=0.0)
    problem.rows[0] = -vector(0.1, 0.7, 0.3) @ problem.rows[1:M]  # held to rounding
    close(problem.solve().method.mixed(problem.rows, problem.inner, step, M)[0], torch.zeros(12).double())


def test_equal_losses_leave_f_out():
    problem = Problem(2, m=2, history=0)
    problem.rows = torch.stack([vector(3.0, 0.0), vector(0.0, 4.0)])
    problem.loss = vector(0.7, 0.7)
    step = problem.solve().step
    assert not problem.h.any()
    close(step.d, -vector(1.0, 1.0) / 2**0.5 * 2.5)  # of two columns of one length
    problem.loss = vector(0.7, 0.6)
    assert (problem.solve().step.d - step.d).norm() > 0.1


@pytest.mark.parametrize("m", [3, 5, 7])
def test_rounding_is_no_unfairness(m):
    problem = Problem(0, m=m)
    problem.loss = torch.full((m,), 0.1).double()
    assert fedpg.slope_of_unfairness(problem.loss).any()
    assert not problem.solve().h.any()
    single = torch.full((m,), 2.3025851)
    single[1] = torch.nextafter(single[1], single[1] + 1)
    problem.loss = single.double()  # losses arrive in float32
    assert not problem.solve().h.any()


def test_f_by_hand():
    """g = (-4, 0) and (0, -3), L = (8, 4.5): h ~ L_2, -L_1, so grad F ~ (-3, 4). At the length 3.5 the shortest of
    (-1, 0), (0, -1), (-.6, .8) lies halfway between the last two: d ~ (3, 1), as long as the mean (-2, -1.5).
    """
    problem = Problem(0, m=2, history=0)
    problem.rows, problem.loss = torch.stack([vector(-4.0, 0.0), vector(0.0, -3.0)]), vector(8.0, 4.5)
    step = problem.solve().step
    close(step.d, vector(3.0, 1.0) / 10**0.5 * 2.5)
    assert step.sigma == pytest.approx(2.5 / (3.5 * 0.1**0.5))


def test_one_client_alone_steps_along_its_gradient():
    problem = Problem(0, m=1, history=0).solve()
    close(problem.step.d, -problem.rows[0])
    # No conflict: r = 1
    close(problem.personal(), -problem.rows)


@pytest.mark.parametrize("form", [RATE, MIX])
def test_opposite_gradients_move_nothing(form):
    run = aggregated(form, torch.stack([torch.ones(P), -torch.ones(P)]).double(), vector(1.0, 1.0))
    close(run.server.w, W0)
    close(run.server.models[:2], W0.expand(2, -1))


def test_a_gradient_of_zero_is_no_column():
    problem = Problem(3, form="mix", gamma=0.5)
    problem.rows[1], problem.loss = 0, vector(0.5, 0.4, 0.9, 0.6)
    step = problem.solve().step
    assert step.slope[[0, 2, 3, 4, 5, 6]].max() < 0
    assert not problem.personal()[1].any()
    assert step.length == pytest.approx(float(problem.rows[:M].mean(0).norm()))
    assert make(FedPG, RATE).rates(problem.inner, step, M)[1] == 0
    problem.rows[:M] = 0
    assert not problem.solve().step.d.any()


def test_one_huge_gradient_does_not_lengthen_the_median():
    for reference, longer in (("mean", (20, 150)), ("median", (0.9, 1.5))):
        problem = Problem(2, reference=reference).solve()
        plain = problem.step
        problem.rows[0] *= 100
        assert longer[0] < problem.solve().step.length / plain.length < longer[1]
        problem.rows[1] = 0
        assert 0 < problem.solve().step.length < torch.inf
    problem = Problem(2, reference="median")
    problem.rows /= problem.rows.norm(dim=1, keepdim=True) / 3  # of one length: as the mean
    close(problem.solve().step.d.norm(), problem.rows[:M].mean(0).norm())


def test_slices_make_no_difference(monkeypatch):
    whole = Problem(0, form="mix", gamma=0.3).solve()
    e = whole.personal()
    monkeypatch.setattr(qp, "SLICE", 5)
    sliced = Problem(0, form="mix", gamma=0.3).solve()
    close(sliced.step.d, whole.step.d)
    close(sliced.personal(), e)


def turn(ids, round=3, lr=0.5):
    share = torch.full((len(ids),), 1 / len(ids)).double()
    return SimpleNamespace(ids=torch.tensor(ids), share=share, round=round, lr=lr, round_lr=lr)


def server(clients=5, last=None):
    draw = torch.Generator().manual_seed(3)
    grads, models = torch.randn(2, clients, P, generator=draw, dtype=torch.float64)
    return Server(W0, grads, torch.tensor(last or [-1] * clients), models)


def aggregated(hyper, g, loss, ids=None, last=None, replies=()):
    """Return the new server and the questions that were asked."""
    ids = list(range(len(g))) if ids is None else ids
    talk = make(FedPG, hyper).aggregate(server(last=last), Up(g, loss), turn(ids))
    asked, answers = [], iter(replies)
    reply = None
    while True:
        try:
            asked.append(talk.send(reply))
        except StopIteration as end:
            return SimpleNamespace(server=end.value, asked=asked)
        reply = None if isinstance(asked[-1], Personal) else Losses(next(answers))


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
@pytest.mark.parametrize("where", ["g", "loss"])
@pytest.mark.parametrize("hyper", [RATE, MIX, EASY])
def test_a_broken_upload_is_an_absent_client(broken, where, hyper):
    g, loss = torch.randn(3, P, generator=torch.Generator().manual_seed(1)).double(), vector(1.0, 0.5, 0.8)
    last, here = [2, 1, 2, -1, 2], [0, 2]
    sound = aggregated(hyper, g[here], loss[here], [0, 3], last, [vector(0.0, 0.0)])
    spoilt = select((g.clone(), loss.clone()), slice(None))
    (spoilt[0][1, 5:6] if where == "g" else spoilt[1][1:2]).fill_(broken)
    got = aggregated(hyper, *spoilt, ids=[0, 1, 3], last=last, replies=[vector(0.0, broken, 0.0)])
    close(got.server, sound.server)
    assert got.server.last.tolist() == [3, 1, 2, 3, 2]
    close(select(got.asked[-1], [0, 2]), sound.asked[-1])
    nobody = aggregated(hyper, torch.full((2, P), broken).double(), vector(1.0, 1.0), last=last)
    close(nobody.server, server(last=last))


def test_who_is_remembered():
    """In round 9 three of eight clients are there: seven have been seen, so FedLF looks back 7 // 3 = 2 rounds."""
    last, ids = torch.tensor([8, 7, 6, 8, -1, 0, 7, 5]), torch.tensor([3, 5, 4])

    def remembered(tau):
        return make(FedPG, {**RATE, "tau": tau}).history(last, ids, 9).tolist()

    assert remembered(None) == [0, 1, 6]
    assert remembered(1) == [0]
    assert remembered(0) == []
    assert remembered(4) == [0, 1, 2, 6, 7]


def test_the_second_round_remembers_the_first():
    """As many clients were seen as a round has, so tau is 1; FedLF's code would wait for one more."""
    last = torch.tensor([1, 1, 1, -1, -1, -1])
    assert make(FedPG, RATE).history(last, torch.tensor([0, 3, 4]), 2).tolist() == [1, 2]
    assert make(FedPG, RATE).history(last, torch.tensor([0, 1, 2]), 2).tolist() == []


# The line search


def searched(means, *, s=1, beta=1e-4, sigma=0.5, longest=1.0, lr=0.5, losses=(1.0, 1.2), h=(0.0, 0.0)):
    """Return (eta, the steps that were tried) where the losses after each trial are given."""
    step = fedpg.Direction(W0, 1.0, vector(-1.0, -1.0), sigma)
    method, present = make(FedPG, {**SEARCH, "s": s, "beta": beta}), torch.tensor([True, True])
    talk = method.search(step, longest, vector(*losses), vector(*h), turn([0, 1], lr=lr), present)
    question, tried = next(talk), []
    for new in means:
        tried.append(float(question.eta[0]))
        assert isinstance(question, TriedStep) == (len(tried) == 1)
        try:
            question = talk.send(Losses(vector(*new)))
        except StopIteration as end:
            return end.value, tried
    raise AssertionError(f"another step is tried: {question.eta}")


def test_the_first_step_that_all_like_is_taken():
    assert searched([(0.9, 1.1)]) == (1.0, [1.0])
    assert searched([(0.9, 1.21), (0.99, 1.19)]) == (0.5, [1.0, 0.5])


def test_armijo_wants_its_share_of_the_promise():
    """The share is half of what eta * slope predicts: 0.5 for eta = 1, 0.25 for 0.5."""
    assert searched([(0.6, 0.6), (0.7, 0.9)], beta=0.5) == (0.5, [1.0, 0.5])


def test_f_has_to_fall_where_it_is_a_column():
    """L = (1, 1.2): both losses fall, but their ratio grows. With h = 0, F is not a column."""
    apart, closer = (0.2, 1.1), (0.9, 1.0)
    assert searched([apart])[0] == 1
    assert searched([apart, closer], h=(-0.1, 0.1)) == (0.5, [1.0, 0.5])


def test_f_has_to_bring_its_share_too():
    """h . slope = -0.5 for eta = 1. From L = (1, 2) to (1, 1) F falls by 1 - 3 / 10 ** 0.5 = 0.051."""
    h, slope = vector(-0.5, 1.0), vector(-1.0, -1.0)
    for beta, enough in ((0.1, True), (0.11, False)):
        assert make(FedPG, SEARCH).armijo(vector(1.5, 3.0), vector(1.0, 1.0), beta * slope, h) == enough


def test_the_longest_that_lowers_the_mean_comes_second():
    """eta from 1 to eta_lb = 0.5 / 2 / 0.5 = 0.5, or 0.25 for s = 2: two or three trials, all refused by the second."""
    assert searched([(0.5, 1.3), (0.4, 1.3)]) == (1.0, [1.0, 0.5])
    assert searched([(2.0, 1.3), (0.5, 1.3), (0.4, 1.3)], s=2) == (0.5, [1.0, 0.5, 0.25])


def test_the_least_mean_comes_last():
    assert searched([(2.0, 1.3), (1.0, 1.3), (1.5, 1.3)], s=2)[0] == 0.5
    nan = float("nan")
    assert searched([(nan, 1.3), (nan, 1.3), (nan, nan)], s=2)[0] == 0.25


def test_bounds_that_leave_nothing_leave_one_trial():
    """d-hat is short: eta_lb = 0.5 / 2 / 0.1 = 2.5."""
    assert searched([(9.0, 9.0)], sigma=0.1) == (1.0, [1.0])


@pytest.mark.parametrize(("last", "longest"), [([-1] * 5, 1.0), ([2, -1, 2, -1, 1], 1.0), ([2, 2, 0, 0, 0], 0.5)])
def test_who_was_there_last_bounds_the_first_trial(last, longest):
    """In round 3 S^{t-1} is empty, {0, 2} or {0, 1}; S^t is {0, 2, 3}."""
    g, loss = torch.randn(3, P, generator=torch.Generator().manual_seed(1)).double(), vector(1.0, 0.5, 0.8)
    run = aggregated(EASY, g, loss, [0, 2, 3], last, [torch.zeros(3).double()])
    assert run.asked[0].eta[0] == longest == run.asked[-1].eta[0, 0]
    close(run.server.w, W0 + longest * run.asked[0].d[0])


# Whole rounds

SETTINGS = {"participation": 0.5, "epochs": 1, "batch": 1, "lr": 0.5}
WELL = Quadratic([[1, 0], [0, 1]]), vector(0.0, 0.0)


def a_then_b(b):
    """Return a federation of A at (4, 0) and B, in which the cohorts are A, then B."""
    return by_hand([[([4, 0], 0)], [(b, 0)]], seed=0)


@pytest.mark.parametrize("chunk", [1, 2])
def test_by_hand(chunk):
    """f = 1/2 |w - m|^2 and one step a round, so g = w - m; lr 0.5, from (0, 0).

    Round 1, A alone: g_A = (-4, 0), d-hat = (4, 0), w = (2, 0). Nobody objects: r = 1, d_A = (8, 0), A gets (4, 0).
    Round 2, B alone, m = (-2.216, -2.688): g_B = (4.216, 2.688), of length 5, and A's (-4, 0) is remembered. At one
    length they are 5 (.8432, .5376) and 5 (-1, 0), the shortest lies halfway: 5 * .28 * (-.28, .96). So
    d = 1.4 (.28, -.96), sigma = 5 / 1.4, d-hat = (1.4, -4.8), w = (2.7, -2.4).
    rate: c_A . d-hat = -7, c_A . g_B = -21.08, r = 175 / 527, d_B = (0, -4.8 - r 2.688); A's model stays.
    mix:  p_B = -g_B without what c_A objects to = (0, -2.688). gamma = 0: e = (0, -5). gamma = 1: e = -g_B.
          gamma = 252 / 527: (-2.016, -2.688) = 3.36 (-.6, -.8), e = (-3, -4).
    """
    settings = {**SETTINGS, "chunk": chunk, "federation": a_then_b([-2.216, -2.688]), "network": WELL}
    first = simulate(FedPG, RATE, rounds=1, **settings)
    assert first.results[0].ids.tolist() == [0]
    close(first.w, [2, 0])
    # B has no model yet: the global one
    close(first.personal, [[4, 0], [2, 0]])
    second = simulate(FedPG, RATE, rounds=2, **settings)
    close(second.w, [2.7, -2.4])
    close(second.personal, [[4, 0], [2, -2.4 - 0.5 * 2.688 * 175 / 527]])
    for gamma, b in ((0.0, [2.7, -4.9]), (252 / 527, [1.2, -4.4]), (1.0, [0.592, -3.744])):
        mixed = simulate(FedPG, {**MIX, "gamma": gamma}, rounds=2, **settings)
        close(mixed.w, [2.7, -2.4])
        close(mixed.personal[1], b)
    before = simulate(FedPG, {**MIX, "gamma": 0.0, "p_base": "before"}, rounds=2, **settings)
    close(before.w, [2.7, -2.4])
    close(before.personal[1], [2.0, -2.5])


def test_search_by_hand():
    """As above, s = 1 and beta = 0.4.

    Round 1: L_A = 8, along d-hat 8 - 16 eta + 8 eta^2: fine up to eta = 1.2. eta_ub = 1 is taken, w = (4, 0).
    Round 2: B at (-.216, -2.688), so that g_B is as above. L_B = 12.5 - 7 eta + 12.5 eta^2: fine up to 0.336. A was
    there last time and is not now, so 0.5 is tried first, then 0.25: w = (4, 0) + 0.25 (1.4, -4.8).
    """
    settings = {**SETTINGS, "federation": a_then_b([-0.216, -2.688]), "network": WELL}
    run = simulate(FedPG, SEARCH, rounds=2, **settings)
    close(run.w, [4.35, -1.2])
    close(run.personal, [[8, 0], [4, -1.2 - 0.25 * 2.688 * 175 / 527]])
    # down: w and d-hat; two steps, the rate, the step that was taken. Up: g; the loss and two more
    assert run.results[1].traffic == Traffic(4, 2, 4, 3)


@pytest.mark.parametrize(("hyper", "down", "scalars"), [(RATE, 1, 1), (MIX, 2, 0)])
def test_what_is_communicated(hyper, down, scalars):
    assert simulate(FedPG, hyper).results[-1].traffic == Traffic(down * P, P, scalars, 1)


def test_a_search_sends_its_direction_once():
    """The search sends one vector more, but a cohort that already has the global model does not get it again."""
    for participation, down in ((0.6, 2), (1.0, 1)):
        run = simulate(FedPG, {**SEARCH, "beta": 0.9}, rounds=3, participation=participation)
        assert run.traffic == (down * P, P)
        traffic = run.results[-1].traffic
        assert traffic.others_up > 2, "one step was enough: this test shows nothing"
        assert traffic.others_down == traffic.others_up + 1
    assert run.results[0].traffic.floats_down == 2 * P
    method = make(FedPG, SEARCH)
    assert isinstance(method.send(server(last=[2, 2, 2, 2, 2]), turn([0, 1])), Known)
    assert isinstance(method.send(server(last=[2, 2, 2, 2, 1]), turn([0, 1])), stock.Down)


def test_gamma_and_form_leave_the_global_model_alone():
    plain = simulate(FedPG, RATE, rounds=4, participation=0.6)
    for gamma in (0.0, 1.0):
        mixed = simulate(FedPG, {**MIX, "gamma": gamma}, rounds=4, participation=0.6)
        assert torch.equal(mixed.w, plain.w)
        assert (mixed.personal - plain.personal).norm() > 1e-3


def test_models_of_absent_clients_are_kept():
    runs = [simulate(FedPG, RATE, rounds=t, participation=0.4) for t in (1, 2)]
    ids, never = runs[1].results[-1].ids.tolist(), runs[1].server.last < 0
    assert never.any()
    for i in range(EVERYBODY):
        wanted = runs[1].w if never[i] else runs[0].personal[i]
        assert torch.equal(runs[1].personal[i], wanted) == (i not in ids)


@pytest.mark.parametrize("settings", [{}, {"momentum": 0.9, "weight_decay": 0.01}])
def test_g_is_the_distance_over_the_learning_rate(settings):
    run = simulate(FedPG, {**RATE, "tau": 0}, rounds=1, participation=0.2, lr=0.3, **settings)
    i = run.results[0].ids
    close(run.w, W0 - 0.3 * run.server.grads[i][0])
    close(run.personal[i][0], W0 - 2 * 0.3 * run.server.grads[i][0])


@pytest.mark.parametrize("hyper", [RATE, MIX, SEARCH])
def test_any_chunking_is_the_same_round(hyper):
    same_in_chunks(FedPG, hyper)


@pytest.mark.parametrize(
    "changes",
    [{"gamma": 0.3}, {"form": "mix"}, {"p_base": "before"}, {"s": 1}, {"beta": 0.1}],
    ids=str,
)
def test_refuses_what_would_do_nothing(changes):
    with pytest.raises(UserError, match=r"algorithm\.(form|s) is .* Use "):
        make(FedPG, {**RATE, **changes})
