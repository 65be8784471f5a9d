"""Each transcription against numbers worked out by hand, on quadratic losses.

loss(w, x, y) = 1/2 |w - m|^2 with m the mean of the rows x; so its gradient is w - m. All numbers are
float64-exact unless a third or a seventh occurs. Arithmetic in the comments, step by step.
"""

from itertools import pairwise

import pytest
import torch

from tests.reference import common, fedala, fedfomo, pgfed


def quadratic(w, x, y):
    return 0.5 * ((w - x.mean(0)) ** 2).sum()


def data(*rows):
    x = torch.tensor(rows, dtype=torch.float64)
    return x, torch.zeros(len(rows), dtype=torch.long)


def index(*batches):
    return [torch.tensor(rows) for rows in batches]


def same(got, expected):
    """Assert equality to 1e-12 of numbers, vectors, or dictionaries of them with the same keys."""
    if isinstance(expected, dict):
        assert got.keys() == expected.keys()
        for key in expected:
            same(got[key], expected[key])
    else:
        got = torch.as_tensor(got, dtype=torch.float64)
        torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64), rtol=0.0, atol=1e-12)


# PGFed ------------------------------------------------------------------------------------------------------
#
# One parameter, three clients, two batches a round; lr = 1/2, momentum = 1/4, mu = 1/2, eta2 = 1/16,
# theta^0 = 0.
#   client 0: x = [8],          n = 1, batches with means  8,   8; full mean   8
#   client 1: x = [0, -8, -16], n = 3, batches with means  0, -12; full mean  -8
#   client 2: x = [-10.5],      n = 1, batches with means -10.5 twice
# One round from w with batch means a, b and a constant h (g-tilde; 0 in round 1):
#   g = w - a + h;  v = g;  w1 = w - v/2;    g' = w1 - b + h;  v' = v/4 + g';  w2 = w1 - v'/2.


def pgfed_rounds(cohorts, **more):
    settings = {"mu": 0.5, "eta2": 1 / 16} | more
    rows = {0: [[0], [0]], 1: [[0], [1, 2]], 2: [[0], [0]]}
    return pgfed.run(
        loss=quadratic,
        w0=torch.zeros(1, dtype=torch.float64),
        clients=[data([8.0]), data([0.0], [-8.0], [-16.0]), data([-10.5])],
        cohorts=cohorts,
        batches=lambda t, i: index(*rows[i]),
        lr=0.5,
        momentum=0.25,
        **settings,
    )


def test_pgfed_two_rounds():
    first, second = pgfed_rounds([[0, 1], [1, 2]])
    # Round 1, S = {0, 1}: FedAvg.
    # Client 0: g = -8, w1 = 4; g' = -4, v' = -2 - 4 = -6, w2 = 4 + 3 = 7.
    # Client 1: g = 0, w1 = 0; g' = 12, v' = 12, w2 = -6.
    # Full gradients: 7 - 8 = -1;  -6 + 8 = 2.
    # g1 = mu (f - grad theta): 1/2 (1/2 + 7) = 3.75;  1/2 (2 + 12) = 7.
    # theta^1 = 1/4 * 7 + 3/4 * (-6) = -2.75.
    same(first["models"], {0: [7.0], 1: [-6.0]})
    same(first["grads"], {0: [-1.0], 1: [2.0]})
    same(first["g1"], {0: 3.75, 1: 7.0})
    same(first["theta"], [-2.75])
    same(first["personal"], {0: [7.0], 1: [-6.0], 2: [0.0]})
    same(first["A"], [[0.5] * 3] * 3)  # 1/M, M = 2
    assert first["g_tilde"] == {}
    assert first["g_bar"] is None

    # Round 2, S = {1, 2}, S_{t-1} = {0, 1}.
    # g-tilde = 1/2 (1/2 * -1 + 1/2 * 2) = 1/4 for both;  g-bar = (1/2)/2 * (-1 + 2) = 1/4.
    same(second["g_tilde_down"], {1: [0.25], 2: [0.25]})
    same(second["g_bar"], [0.25])
    # Client 1 from -2.75: g = -2.75 - 0 + 0.25 = -2.5, w1 = -2.75 + 1.25 = -1.5, g2 = -0.375:
    #   alpha_10 = 1/2 - (3.75 - 0.375)/16 = 0.5 - 0.2109375 = 0.2890625
    #   alpha_11 = 1/2 - (7 - 0.375)/16    = 0.5 - 0.4140625 = 0.0859375
    # g' = -1.5 + 12 + 0.25 = 10.75, v' = -0.625 + 10.75 = 10.125, w2 = -1.5 - 5.0625 = -6.5625,
    #   g2 = -1.640625:
    #   alpha_10 = 0.2890625 - 2.109375/16 = 0.2890625 - 0.1318359375 = 0.1572265625
    #   alpha_11 = 0.0859375 - 5.359375/16 < 0, so 0
    # Client 2 from -2.75: g = -2.75 + 10.5 + 0.25 = 8, w1 = -6.75, g2 = -1.6875:
    #   alpha_20 = 0.5 - 2.0625/16 = 0.37109375;  alpha_21 = 0.5 - 5.3125/16 = 0.16796875
    # g' = -6.75 + 10.5 + 0.25 = 4, v' = 2 + 4 = 6, w2 = -9.75, g2 = -2.4375:
    #   alpha_20 = 0.37109375 - 1.3125/16 = 0.37109375 - 0.08203125 = 0.2890625
    #   alpha_21 = 0.16796875 - 4.5625/16 < 0, so 0
    same(second["models"], {1: [-6.5625], 2: [-9.75]})
    same(second["A"], [[0.5, 0.5, 0.5], [0.1572265625, 0.0, 0.5], [0.2890625, 0.0, 0.5]])
    # Client 1: grad = -6.5625 + 8 = 1.4375, f = 1/2 * 2.06640625 = 1.033203125, grad * theta = -9.43359375,
    #   g1 = 1/2 (1.033203125 + 9.43359375) = 5.2333984375
    # Client 2: grad = -9.75 + 10.5 = 0.75, f = 0.28125, grad * theta = -7.3125, g1 = 1/2 * 7.59375 = 3.796875
    same(second["grads"], {1: [1.4375], 2: [0.75]})
    same(second["g1"], {1: 5.2333984375, 2: 3.796875})
    # theta^2 = 3/4 * (-6.5625) + 1/4 * (-9.75) = -4.921875 - 2.4375 = -7.359375; client 0 is stale.
    same(second["theta"], [-7.359375])
    same(second["personal"], {0: [7.0], 1: [-6.5625], 2: [-9.75]})


def test_pgfedmo_third_round():
    # Rounds 1 and 2 as above (in round 2 no client has a previous g-tilde yet). beta = 1/2.
    plain, momentum = (pgfed_rounds([[0, 1], [1, 2], [0, 1]], beta=beta) for beta in (0.0, 0.5))
    for key in ("theta", "A", "g_tilde"):
        torch.testing.assert_close(momentum[1][key], plain[1][key], rtol=0.0, atol=0.0)
    # Round 3, S = {0, 1}, S_{t-1} = {1, 2}; g-bar = (1/2)/2 * (1.4375 + 0.75) = 0.546875.
    # Client 0 (row 0 of A still 1/2): 1/2 (1/2 * 1.4375 + 1/2 * 0.75) = 0.546875; no previous one.
    # Client 1 (alpha_11 = 0, alpha_12 = 1/2): 1/2 (0 + 1/2 * 0.75) = 0.1875;
    #   with momentum 1/2 (0.1875 + 0.25) = 0.21875. Client 2 keeps 0.25.
    third = momentum[2]
    same(third["g_bar"], [0.546875])
    same(third["g_tilde_down"], {0: [0.546875], 1: [0.1875]})
    same(third["g_tilde"], {0: [0.546875], 1: [0.21875], 2: [0.25]})
    same(plain[2]["g_tilde"], {0: [0.546875], 1: [0.1875], 2: [0.25]})
    # Client 0 from -7.359375: g = -15.359375 + 0.546875 = -14.8125, w1 = -7.359375 + 7.40625 = 0.046875,
    #   g2 = 0.546875 * 0.046875 = 0.025634765625:
    #   alpha_01 = 0.5 - 5.259033203125/16 = 0.1713104248046875
    #   alpha_02 = 0.5 - 3.822509765625/16 = 0.2610931396484375
    # g' = 0.046875 - 8 + 0.546875 = -7.40625, v' = -3.703125 - 7.40625 = -11.109375,
    #   w2 = 0.046875 + 5.5546875 = 5.6015625, g2 = 0.546875 * 5.6015625 = 3.0633544921875:
    #   both steps (8.29675.../16, 6.86022.../16) exceed what is left, so alpha_01 = alpha_02 = 0.
    # Client 1 from -7.359375: g = -7.359375 - 0 + 0.21875 = -7.140625,
    #   w1 = -7.359375 + 3.5703125 = -3.7890625, g2 = -2.0721435546875:
    #   alpha_11 stays at 0 (5.2333984375 + g2 > 0);
    #   alpha_12 = 0.5 - 1.7247314453125/16 = 0.39220428466796875
    # g' = -3.7890625 + 12 + 0.21875 = 8.4296875, v' = -1.78515625 + 8.4296875 = 6.64453125,
    #   w2 = -3.7890625 - 3.322265625 = -7.111328125, g2 = -3.889007568359375: alpha_11 = 0;
    #   alpha_12 = 0.39220428466796875 + 0.092132568359375/16 = 0.3979625701904296875
    same(third["models"], {0: [5.6015625], 1: [-7.111328125]})
    same(third["A"], [[0.5, 0.0, 0.0], [0.1572265625, 0.0, 0.3979625701904296875], [0.2890625, 0.0, 0.5]])
    # theta^3 = 1/4 * 5.6015625 - 3/4 * 7.111328125 = 1.400390625 - 5.33349609375 = -3.93310546875
    same(third["theta"], [-3.93310546875])
    same(third["personal"], {0: [5.6015625], 1: [-7.111328125], 2: [-9.75]})


def test_pgfed_ce_two_rounds():
    # As PGFed, with eta2 = 1/32; c_j = g1_j + 1/2 grad_j theta^1:
    #   c_0 = 3.75 + 1/2 * (-1)(-2.75) = 5.125;  c_1 = 7 + 1/2 * 2 * (-2.75) = 4.25
    # Two batches, the same for both clients: alpha_i0 = 1/2 - 2 * 5.125/32 = 0.1796875,
    #   alpha_i1 = 1/2 - 2 * 4.25/32 = 0.234375. The models do not see alpha before the next round.
    _, second = pgfed_rounds([[0, 1], [1, 2]], ce=True, eta2=1 / 32)
    same(second["c"], {0: 5.125, 1: 4.25})
    assert second["g_bar"] is None
    same(second["A"], [[0.5, 0.5, 0.5], [0.1796875, 0.234375, 0.5], [0.1796875, 0.234375, 0.5]])
    same(second["models"], {1: [-6.5625], 2: [-9.75]})
    same(second["theta"], [-7.359375])


# FedALA -----------------------------------------------------------------------------------------------------
#
# Three parameters (l, a, b): l is the lower layer, (a, b) the top one. lr = 1/2, one training batch (all
# rows), so local training halves the distance to the mean; momentum = 1/2 must not show, as the buffer is
# fresh each round.
# eta = 1/4, theta^0 = 0.
#   client 0: rows (0, 2, 2), (3, 5, 5), (-3, -1, -1), mean (0, 2, 2), n = 3;  client 1: (16, 18, -14);
#   client 2: (-2, 5, 12). Cohorts {0, 1}, {0, 2}, {0}.


def test_fedala():
    rows = {0: [0, 1, 2], 1: [0], 2: [0]}
    ala_rows = {2: [[0], [0]], 3: [[1], [0]]}  # client 0's mini-batches in rounds 2 and 3

    first, second, third = fedala.run(
        loss=quadratic,
        w0=torch.zeros(3, dtype=torch.float64),
        clients=[
            data([0.0, 2.0, 2.0], [3.0, 5.0, 5.0], [-3.0, -1.0, -1.0]),
            data([16.0, 18.0, -14.0]),
            data([-2.0, 5.0, 12.0]),
        ],
        cohorts=[[0, 1], [0, 2], [0]],
        batches=lambda t, i: index(rows[i]),
        lr=0.5,
        momentum=0.5,
        top=slice(1, 3),
        ala_batches=lambda t, i, epoch: index(*ala_rows[t]),
        eta=0.25,
    )
    # Round 1: ALA off, theta-hat = theta^0. theta_0 = (0, 1, 1), theta_1 = (8, 9, -7).
    # theta^1 = 3/4 theta_0 + 1/4 theta_1 = (2, 0.75 + 2.25, 0.75 - 1.75) = (2, 3, -1).
    same(first["models"], {0: [0.0, 1.0, 1.0], 1: [8.0, 9.0, -7.0]})
    same(first["theta"], [2.0, 3.0, -1.0])
    same(first["W"], {0: [1.0, 1.0], 1: [1.0, 1.0], 2: [1.0, 1.0]})
    same(first["personal"], {0: [0.0] * 3, 1: [0.0] * 3, 2: [2.0, 3.0, -1.0]})  # 2 was never sampled
    assert first["ala_losses"] == {0: [], 1: []}

    # Round 2, client 0: theta - theta_0 = (2, -2) in the top layer; theta-hat = (2, 1 + 2 W_a, 1 - 2 W_b).
    # Every ALA batch is the row (0, 2, 2).
    # Batch 1: theta-hat = (2, 3, -1), loss 1/2 (4 + 1 + 9) = 7; gradient (a, b) = (1, -3), by W (2, 6);
    #   W = (1 - 0.5, 1 - 1.5 -> 0) = (0.5, 0).
    # Batch 2: theta-hat = (2, 2, 1), loss 1/2 (4 + 0 + 1) = 2.5; gradient (0, -1), by W (0, 2);
    #   W = (0.5, -0.5 -> 0).
    # So W = (0.5, 0) from there on, each epoch records 2.5; more than 10 records are asked for: 11 epochs.
    # theta-hat = (2, 2, 1); theta_0 = half way to (0, 2, 2) = (1, 2, 1.5).
    # Client 2, here for the first time: theta-hat = theta^1, theta_2 = half way to (-2, 5, 12) = (0, 4, 5.5).
    # theta^2 = 3/4 (1, 2, 1.5) + 1/4 (0, 4, 5.5) = (0.75, 2.5, 2.5).
    assert second["ala_losses"] == {0: [2.5] * 11, 2: []}
    same(second["W"], {0: [0.5, 0.0], 1: [1.0, 1.0], 2: [1.0, 1.0]})
    same(second["theta_hat"], {0: [2.0, 2.0, 1.0], 2: [2.0, 3.0, -1.0]})
    same(second["models"], {0: [1.0, 2.0, 1.5], 2: [0.0, 4.0, 5.5]})
    same(second["theta"], [0.75, 2.5, 2.5])
    same(second["personal"], {0: [2.0, 2.0, 1.0], 1: [0.0] * 3, 2: [2.0, 3.0, -1.0]})

    # Round 3, client 0, one epoch: theta - theta_0 = (0.5, 1); theta-hat = (0.75, 2 + 0.5 W_a, 1.5 + W_b).
    # Batch 1, row (3, 5, 5): theta-hat top (2.25, 1.5), gradient (-2.75, -3.5), by W (-1.375, -3.5);
    #   W = (0.5 + 0.34375, 0 + 0.875) = (0.84375, 0.875).
    # Batch 2, row (0, 2, 2): theta-hat top (2.421875, 2.375), gradient (0.421875, 0.375),
    #   by W (0.2109375, 0.375); loss before the update 1/2 (0.75^2 + 0.421875^2 + 0.375^2)
    #   = 1/2 (0.5625 + 0.177978515625 + 0.140625) = 0.4405517578125;
    #   W = (0.84375 - 0.052734375, 0.875 - 0.09375) = (0.791015625, 0.78125).
    # theta-hat = (0.75, 2 + 0.3955078125, 1.5 + 0.78125) = (0.75, 2.3955078125, 2.28125).
    # theta_0 = half way to (0, 2, 2) = (0.375, 2.19775390625, 2.140625) = theta^3.
    same(third["ala_losses"][0], [0.4405517578125])
    same(third["W"], {0: [0.791015625, 0.78125], 1: [1.0, 1.0], 2: [1.0, 1.0]})
    same(third["theta_hat"], {0: [0.75, 2.3955078125, 2.28125]})
    same(third["models"], {0: [0.375, 2.19775390625, 2.140625]})
    same(third["theta"], [0.375, 2.19775390625, 2.140625])
    same(third["personal"], {0: [0.75, 2.3955078125, 2.28125], 1: [0.0] * 3, 2: [2.0, 3.0, -1.0]})


def test_fedala_initial_stage_is_per_client_and_weights_stay_below_one():
    # One parameter, all of it top; lr = 1/2; client 0: rows 8, 0, mean 4; client 1: row 8.
    # Cohorts {0}, {1}, {0}.
    # Round 1: theta_0 = 2 = theta^1. Round 2: theta_1 = half way from 2 to 8 = 5 = theta^2.
    # Round 3, client 0's first with ALA on: theta-hat = 2 + 3 W; ALA batch row 8.
    #   At W = 1: theta-hat = 5, loss 4.5, gradient -3, by W -9, W = 1 + 9/4 -> 1. So W stays 1 for 11 epochs;
    #   theta_0 = half way from 5 to 4 = 4.5.
    rounds = fedala.run(
        loss=quadratic,
        w0=torch.zeros(1, dtype=torch.float64),
        clients=[data([8.0], [0.0]), data([8.0])],
        cohorts=[[0], [1], [0]],
        batches=lambda t, i: index([[0, 1], [0]][i]),
        lr=0.5,
        momentum=0.0,
        top=slice(0, 1),
        ala_batches=lambda t, i, epoch: index([0]),
        eta=0.25,
    )
    assert [r["ala_losses"] for r in rounds] == [{0: []}, {1: []}, {0: [4.5] * 11}]
    same(rounds[2]["W"], {0: [1.0], 1: [1.0]})
    same(rounds[2]["personal"], {0: [5.0], 1: [2.0]})
    same(rounds[2]["theta"], [4.5])


def test_fedala_convergence_rule():
    # Ten records are never enough. Last ten records: five 0s and five x, so the standard deviation is x/2
    # (population; the sample's is x/2 * sqrt(10/9)): the limit 0.1 lies at x = 0.2, and x = 0.195 passes
    # (where the sample's is 0.1028).
    assert not fedala.converged([0.0] * 10, window=10, tol=0.1)
    assert fedala.converged([9.0] + [0.0] * 5 + [0.195] * 5, window=10, tol=0.1)
    assert not fedala.converged([0.0] + [0.0] * 5 + [0.205] * 5, window=10, tol=0.1)


# FedFomo ----------------------------------------------------------------------------------------------------
#
# Two parameters, lr = 1/2, one training batch (local training halves the distance to the mean of D_train),
# momentum = 1/2 without effect (fresh buffer), theta^0 = 0. With one validation row v,
#   L(anchor) - L(theta) = 1/2 |anchor - v|^2 - 1/2 |theta - v|^2, from anchor 0: v.theta - 1/2 |theta|^2.
#   client 0: train (5, 8), (7, 8), mean (6, 8); val (4.8, 1.4)
#   client 1: train (8, -6);                     val (0, 0)
#   client 2: train (10, 5);                     val (4, -3)
# Cohorts {0, 1}, {0, 2}, {2}.


def test_fedfomo():
    train = {0: [0, 1], 1: [0], 2: [1]}
    val = {0: [2], 1: [1], 2: [0]}
    asked = []

    def chosen(t, i, P_row, available):
        asked.append((t, i, P_row.tolist(), available))
        return {(2, 0): [1], (2, 2): [0, 1], (3, 2): [1]}[t, i]

    first, second, third = fedfomo.run(
        loss=quadratic,
        w0=torch.zeros(2, dtype=torch.float64),
        clients=[
            data([5.0, 8.0], [7.0, 8.0], [4.8, 1.4]),
            data([8.0, -6.0], [0.0, 0.0]),
            data([4.0, -3.0], [10.0, 5.0]),
        ],
        cohorts=[[0, 1], [0, 2], [2]],
        batches=lambda t, i: index(train[i]),
        lr=0.5,
        momentum=0.5,
        train_rows=train.get,
        val_rows=val.get,
        chosen=chosen,
    )
    # Round 1: nothing to download. theta_0 = (3, 4), theta_1 = (4, -3); evaluated: theta^0.
    same(first["models"], {0: [3.0, 4.0], 1: [4.0, -3.0]})
    same(first["personal"], {0: [0.0, 0.0], 1: [0.0, 0.0], 2: [0.0, 0.0]})
    same(first["P"], torch.eye(3).tolist())
    assert first["w"] == {0: {}, 1: {}}
    same(first["mean_cohort"], [3.5, 0.5])

    # Round 2, client 0 downloads 1 and has its own; anchor theta^0, both models at distance 5.
    #   own: v.theta - 1/2 |theta|^2 = 14.4 + 5.6 - 12.5 = 7.5, w = 1.5;  1: 19.2 - 4.2 - 12.5 = 2.5, w = 0.5
    #   w* = (3/4, 1/4); theta-hat = 3/4 (3, 4) + 1/4 (4, -3) = (3.25, 2.25); P_0 = (1 + 1.5, 0.5, 0)
    #   trained: half way to (6, 8) = (4.625, 5.125)
    # Client 2, first time, downloads 0 and 1; anchor theta^0, v = (4, -3).
    #   0: 12 - 12 - 12.5 = -12.5, w = -2.5;  1: 25 - 12.5 = 12.5, w = 2.5
    #   w* = (0, 1); theta-hat = (4, -3); P_2 = (-2.5, 2.5, 1); trained: half way to (10, 5) = (7, 1)
    same(second["w"], {0: {0: 1.5, 1: 0.5}, 2: {0: -2.5, 1: 2.5}})
    same(second["w_star"], {0: {0: 0.75, 1: 0.25}, 2: {0: 0.0, 1: 1.0}})
    same(second["personal"], {0: [3.25, 2.25], 1: [0.0, 0.0], 2: [4.0, -3.0]})
    same(second["P"], [[2.5, 0.5, 0.0], [0.0, 1.0, 0.0], [-2.5, 2.5, 1.0]])
    same(second["models"], {0: [4.625, 5.125], 2: [7.0, 1.0]})

    # Round 3, client 2 downloads 1 and has its own; anchor = its model before its training = (4, -3) = v.
    #   1: theta_1 = (4, -3) is the anchor, distance 0: w = 0
    #   own: theta = (7, 1), distance 5: (0 - 12.5)/5 = -2.5
    #   no weight is positive: theta-hat = anchor, not the trained model; P_2 = (-2.5, 2.5 + 0, 1 - 2.5)
    same(third["anchor"], {2: [4.0, -3.0]})
    same(third["w"], {2: {1: 0.0, 2: -2.5}})
    same(third["w_star"], {2: {1: 0.0, 2: 0.0}})
    same(third["personal"], {0: [3.25, 2.25], 1: [0.0, 0.0], 2: [4.0, -3.0]})
    same(third["P"], [[2.5, 0.5, 0.0], [0.0, 1.0, 0.0], [-2.5, 2.5, -1.5]])
    same(third["models"], {2: [7.0, 1.0]})
    same(third["uploads"], {0: [4.625, 5.125], 1: [4.0, -3.0], 2: [7.0, 1.0]})

    offered = {(t, i): available for t, i, _, available in asked}
    assert offered == {(2, 0): [0, 1], (2, 2): [0, 1], (3, 2): [0, 1, 2]}
    same(asked[2][2], [-2.5, 2.5, 1.0])  # P_2 as it was before round 3


def test_fedfomo_ma():
    # Models -6, 6, 9: mean 3; without 0: 7.5, without 1: 1.5, without 2: 0. Loss 1/2 (w - 4)^2: at 3, 0.5.
    #   w = 6.125 - 0.5, 3.125 - 0.5, 8 - 0.5 = 5.625, 2.625, 7.5; sum 15.75; w* = 5/14, 1/6, 10/21
    #   theta-hat = 3 + 5/14 * (-9) + 1/6 * 3 + 10/21 * 6 = 3 - 45/14 + 1/2 + 20/7 = 22/7
    models = {n: torch.tensor([value], dtype=torch.float64) for n, value in enumerate((-6.0, 6.0, 9.0))}
    w, w_star, theta_hat = fedfomo.ma_federate(lambda theta: float(0.5 * (theta - 4.0) ** 2), models)
    same(w, {0: 5.625, 1: 2.625, 2: 7.5})
    same(w_star, {0: 5 / 14, 1: 1 / 6, 2: 10 / 21})
    same(theta_hat, [22 / 7])


def test_fedfomo_zero_distance_is_relative():
    # |anchor| = 1e5, so distances up to 1 count as zero; at distance 2, w = (L(anchor) - L(theta))/2.
    def val_loss(theta):
        return float(theta[0] - 1e5)  # 0 at the anchor

    anchor = torch.tensor([1e5, 0.0], dtype=torch.float64)
    near, far = anchor - torch.tensor([0.5, 0.0]), anchor - torch.tensor([2.0, 0.0])
    same(fedfomo.raw_weight(val_loss, anchor, near), 0.0)
    same(fedfomo.raw_weight(val_loss, anchor, far), 1.0)


# The tiny model ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("widths", [(2, 3), (2, 4, 3)])
def test_perceptron_is_torchs(widths):
    layers = []
    for n_in, n_out in pairwise(widths):
        layers += [torch.nn.Linear(n_in, n_out, dtype=torch.float64), torch.nn.ReLU()]
    net = torch.nn.Sequential(*layers[:-1])
    size, logits, _ = common.perceptron(widths)
    w = torch.nn.utils.parameters_to_vector(net.parameters()).detach()
    x = torch.linspace(-1.0, 1.0, 10, dtype=torch.float64).reshape(5, 2)
    assert w.shape == (size,)
    torch.testing.assert_close(logits(w, x), net(x).detach(), rtol=0.0, atol=1e-12)
