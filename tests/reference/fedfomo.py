"""FedFomo, transcribed from the paper's section 3.1, eq. 3 and 13 (it has no algorithm box); MA: eq. 14.

Zhang, Sapra, Fidler, Yeung, Alvarez: "Personalized Federated Learning with First Order Model Optimization",
ICLR 2021.

What the paper leaves open:
- theta_i^(t-1) is client i's model *before* its last local training (its last theta-hat_i; theta^0 at the
  start), so that its own trained model is itself a candidate (appendix, eq. 5): always, once there is one;
- available are the models uploaded in earlier rounds, the newest of each client; while there are none
  (round 1), clients only train. A later first-timer federates from theta^0, without a model of its own;
- w_n = 0 where |theta_n - theta_i^(t-1)| <= 1e-5 |theta_i^(t-1)| (eq. 3 divides by that distance);
- the norm is L2, the loss of eq. 3 the mean over D_val;
- evaluated is theta-hat_i, before local training; an absent client keeps its last one, a never-sampled one
  theta^0.
Which models a client downloads (top M of P_i, epsilon-greedy) is an input.
"""

import torch

from tests.reference.common import copy_of, local_training


def raw_weight(val_loss, anchor, theta_n, zero=1e-5):
    """Eq. 3: w_n = (L_i(theta_i^(t-1)) - L_i(theta_n)) / |theta_n - theta_i^(t-1)|; may be negative."""
    distance = float(torch.linalg.vector_norm(theta_n - anchor))
    if distance <= zero * float(torch.linalg.vector_norm(anchor)):
        return 0.0
    return (val_loss(anchor) - val_loss(theta_n)) / distance


def normalise(w):
    """Eq. 13: w*_n = max(w_n, 0) / sum of max(w_n, 0); all zero where no weight is positive."""
    positive = {n: max(w[n], 0.0) for n in w}
    total = sum(positive.values())
    if total == 0.0:
        return dict.fromkeys(w, 0.0)
    return {n: positive[n] / total for n in w}


def federate(val_loss, anchor, models):
    """Section 3.1: w (eq. 3), w* (eq. 13), theta-hat = anchor + sum of w*_n (theta_n - anchor) (eq. 5)."""
    w = {n: raw_weight(val_loss, anchor, models[n]) for n in models}
    w_star = normalise(w)
    theta_hat = anchor.clone()
    for n in models:
        theta_hat = theta_hat + w_star[n] * (models[n] - anchor)
    return w, w_star, theta_hat


def plain_mean(models):
    """The simple average of a dictionary of models."""
    return sum(models.values()) / len(models)


def ma_weights(val_loss, models):
    """Eq. 14: w_n = L_i(average of the others) - L_i(average of all), no distance. Two models or more."""
    of_all = val_loss(plain_mean(models))
    w = {}
    for n in models:
        others = {j: models[j] for j in models if j != n}
        w[n] = val_loss(plain_mean(others)) - of_all
    return w


def ma_federate(val_loss, models):
    """MA update (not in the paper): theta-hat = mean of all + sum of w*_n (theta_n - mean of all)."""
    w = ma_weights(val_loss, models)
    w_star = normalise(w)
    mean_all = plain_mean(models)
    theta_hat = mean_all.clone()
    for n in models:
        theta_hat = theta_hat + w_star[n] * (models[n] - mean_all)
    return w, w_star, theta_hat


def check_rows(rows_of_batches, train, val):
    """Local training must see D_train only, and D_val none of it."""
    train, val = set(torch.as_tensor(train).tolist()), set(torch.as_tensor(val).tolist())
    assert not train & val
    for rows in rows_of_batches:
        assert set(rows.tolist()) <= train


def run(*, loss, w0, clients, cohorts, batches, lr, momentum, train_rows, val_rows, chosen):
    """All rounds; one dictionary per round.

    `chosen(t, i, P_row, available)` is asked only where something is available; it may name i itself or not.
    models: {i in S_t: uploaded model}; personal: {every i: the model evaluated};
    anchor: {i in S_t: theta_i^(t-1)}; uploads: {n: newest upload}; P: [N, N];
    w, w_star: {i in S_t: {n: weight}}, empty where nothing was available;
    mean_cohort, mean_uploaded: plain averages (FedFomo has no global model, so theta is None).
    """
    everyone = range(len(clients))
    P = torch.eye(len(clients), dtype=torch.float64)  # "Initially we set P = diag(1, ..., 1)"
    theta_hat = {i: w0.clone() for i in everyone}  # client i's model before its last local training
    uploads = {}
    rounds = []
    for t, cohort in enumerate(cohorts, start=1):
        models, anchor, w, w_star = {}, {}, {}, {}
        available = sorted(uploads)
        for i in cohort:
            x, y = clients[i]
            anchor[i], w[i], w_star[i] = theta_hat[i], {}, {}
            if available:
                x_val, y_val = x[val_rows(i)], y[val_rows(i)]
                names = set(chosen(t, i, P[i].clone(), available)) | ({i} & set(available))
                candidates = {n: uploads[n] for n in sorted(names)}

                def val_loss(theta, x_val=x_val, y_val=y_val):
                    return float(loss(theta, x_val, y_val))

                w[i], w_star[i], theta_hat[i] = federate(val_loss, anchor[i], candidates)
                for n in w[i]:
                    P[i, n] += w[i][n]  # "p <- p + w from Eq. 3, where w can now be negative"
            rows_of_batches = batches(t, i)
            check_rows(rows_of_batches, train_rows(i), val_rows(i))
            models[i] = local_training(loss, theta_hat[i], x, y, rows_of_batches, lr, momentum)
        uploads.update(models)  # seen by the others from the next round on
        rounds.append(
            {
                "theta": None,
                "models": copy_of(models),
                "personal": copy_of(theta_hat),
                "anchor": copy_of(anchor),
                "w": {i: dict(w[i]) for i in cohort},
                "w_star": {i: dict(w_star[i]) for i in cohort},
                "P": P.clone(),
                "uploads": copy_of(uploads),
                "mean_cohort": plain_mean(models),
                "mean_uploaded": plain_mean(uploads),
            }
        )
    return rounds
