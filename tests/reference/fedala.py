"""FedALA, transcribed from the paper's Algorithm 1.

Zhang, Hua, Wang, Song, Xue, Ma, Guan: "FedALA: Adaptive Local Aggregation for Personalized Federated
Learning", AAAI 2023. W_i covers the p top layers only, which lie at `top` in the flat vector.

What the box leaves open, or where the transcription departs from it:
- the box's "t = 2" (initial stage) and "t > 2" count global rounds; here they are counted per client: ALA is
  off in a client's first participation (it owns no trained model yet), learns until convergence in its
  second, and for one epoch in every later one. With all clients in every round this is the box;
- "converge" (line 9): more than `window` epochs recorded and the population standard deviation of the last
  `window` records below `tol`, at most `cap` epochs; recorded is each epoch's last mini-batch loss, before
  its update of W;
- eq. 5 is taken mini-batch by mini-batch, theta-hat being rebuilt from the newest W for each;
- k_i is normalised over the sampled clients (as line 18 says);
- evaluated is theta-hat_i, *before* local training; an absent client keeps its last theta-hat_i, a
  never-sampled one has the newest global model, that is, the one aggregated at the end of the round.
"""

import statistics

import torch

from tests.reference.common import copy_of, gradient, local_training, share_average


def mix(theta, theta_i, W, top):
    """Eq. 4: the lower layers are the global model's; the top ones theta_i + (theta - theta_i) * W."""
    theta_hat = theta.clone()
    theta_hat[top] = theta_i[top] + (theta[top] - theta_i[top]) * W
    return theta_hat


def weight_epoch(loss, theta, theta_i, W, top, x, y, epoch_batches, eta):
    """Lines 10-11 (12-13): one epoch of eq. 5 with sigma(.); W, and the last batch's loss before it."""
    last_loss = None
    for rows in epoch_batches:
        theta_hat = mix(theta, theta_i, W, top)
        last_loss = float(loss(theta_hat, x[rows], y[rows]))
        by_theta_hat = gradient(loss, theta_hat, x[rows], y[rows])
        by_W = (theta[top] - theta_i[top]) * by_theta_hat[top]  # chain rule through eq. 4; the rest is frozen
        W = torch.clamp(W - eta * by_W, min=0.0, max=1.0)  # eq. 5, then sigma(w) = max(0, min(1, w))
    return W, last_loss


def converged(losses, window, tol):
    """Return whether line 9's rule is met."""
    return len(losses) > window and statistics.pstdev(losses[-window:]) < tol


def learn_weights(loss, theta, theta_i, W, top, x, y, ala_batches, t, i, initial, eta, window, tol, cap):
    """Lines 8-13: W_i and each epoch's recorded loss. `initial`: the client's first round with ALA on."""
    losses = []
    if initial:  # lines 8-11
        while len(losses) < cap and not converged(losses, window, tol):
            epoch = len(losses) + 1
            W, last = weight_epoch(loss, theta, theta_i, W, top, x, y, ala_batches(t, i, epoch), eta)
            losses.append(last)
    else:  # lines 12-13
        W, last = weight_epoch(loss, theta, theta_i, W, top, x, y, ala_batches(t, i, 1), eta)
        losses.append(last)
    return W, losses


def run(
    *,
    loss,
    w0,
    clients,
    cohorts,
    batches,
    lr,
    momentum,
    top,
    ala_batches,
    eta=1.0,
    window=10,
    tol=0.01,
    cap=100,
    w_start=1.0,
):
    """All rounds; one dictionary per round. `ala_batches(t, i, epoch)` counts epochs from 1 in each round.

    theta: server's model after the round; models: {i in S_t: theta_i after local training};
    personal: {every i: the model evaluated}; theta_hat: {i in S_t}; W: {every i: [size of top]};
    ala_losses: {i in S_t: the recorded losses, one per epoch; empty where ALA was off}.
    """
    everyone = range(len(clients))
    sizes = {i: len(clients[i][1]) for i in everyone}
    theta = w0.clone()  # line 1
    W = {i: torch.full_like(w0[top], w_start) for i in everyone}  # line 2
    trained = {}  # Theta_i^{t-1}: a client's model after its last local training
    turns_with_ala = dict.fromkeys(everyone, 0)
    theta_hat = {}
    rounds = []
    for t, cohort in enumerate(cohorts, start=1):  # lines 3-5
        models, ala_losses = {}, {}
        for i in cohort:  # line 6
            x, y = clients[i]
            if i not in trained:  # no model of its own yet: Theta_i = Theta, ALA is off
                ala_losses[i] = []
                theta_hat[i] = theta.clone()
            else:
                W[i], ala_losses[i] = learn_weights(
                    loss, theta, trained[i], W[i], top, x, y, ala_batches, t, i,
                    turns_with_ala[i] == 0, eta, window, tol, cap,
                )  # fmt: skip
                turns_with_ala[i] += 1
                theta_hat[i] = mix(theta, trained[i], W[i], top)  # line 14, eq. 4
            models[i] = local_training(loss, theta_hat[i], x, y, batches(t, i), lr, momentum)  # lines 15-16
        trained.update(models)  # line 17
        theta = share_average(models, sizes)  # line 18
        rounds.append(
            {
                "theta": theta.clone(),
                "models": copy_of(models),
                "personal": {i: theta_hat.get(i, theta).clone() for i in everyone},  # line 19
                "theta_hat": {i: theta_hat[i].clone() for i in cohort},
                "W": copy_of(W),
                "ala_losses": {i: list(ala_losses[i]) for i in cohort},
            }
        )
    return rounds
