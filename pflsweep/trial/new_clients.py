"""Fine-tuning of new clients, which took no part in training, after a trial's last round."""

import math

import pandas as pd

from pflsweep.config.compose import Config
from pflsweep.data.federation import Federation
from pflsweep.engine import simulation as engine
from pflsweep.engine.finetune import fine_tune
from pflsweep.methods.optimizer import Sgd
from pflsweep.trial.build import Parts
from pflsweep.trial.process import Stop
from pflsweep.trial.progress import say, warn
from pflsweep.trial.tables import new_client_table
from pflsweep.util.errors import counted


def fine_tune_new_clients(
    name: str, new: Federation, simulation: engine.Simulation, parts: Parts, config: Config, stop: Stop
) -> pd.DataFrame:
    """Let new clients fine-tune the global model, and return their scores by epoch.

    Where the method has no global model they begin with the initial one, as in training alone. name: of the trial, for
    messages. new: their rows. Raises KeyboardInterrupt after an epoch where `stop` asks for it.
    """
    train, epochs, common = config.train, config.data.new_epochs, simulation.global_model()
    say(f"{name}: {counted(new.clients, 'new client')} fine-tune for {counted(epochs, 'epoch')}")
    if common is None:
        warn(f"data.new: {config.node('algorithm')} has no global model, so new clients fine-tune the initial model")
    w = parts.task.vector(parts.model) if common is None else common
    opt = Sgd(train.momentum, train.weight_decay)
    numbers = {"epochs": epochs, "batch": train.batch, "large": train.eval_batch}
    # An epoch is a pass over a client's rows here, also where local training takes so many steps
    batching = simulation.schedule.batching._replace(steps=None)
    scores = []
    for after_epoch in fine_tune(parts.task, new, w, opt, lr=train.lr, batching=batching, **numbers):
        scores.append(after_epoch)
        if stop() and len(scores) <= epochs:
            raise KeyboardInterrupt
    return new_client_table(scores, new.stable_ids.numpy())


def fine_tuning_steps(parts: Parts, epochs: int) -> int:
    """Return how many gradient steps all new clients take together."""
    if parts.new is None:
        return 0
    schedule = parts.schedule
    kept = [schedule.batching.kept(rows, schedule.batch) for rows in parts.new.sizes.tolist()]
    return epochs * sum(math.ceil(rows / schedule.batch) for rows in kept)
