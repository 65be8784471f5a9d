"""Stacked trials: several trials whose clients are trained by one call of `fit`.

Each trial runs in a thread of its own. At `fit` the threads wait for one another, and one fit trains the clients of all
trials. Values in which the trials differ become per-client values: the data (by seed), the learning rate in Turn, and
floats among a method's hyperparameters, inside @per_client. A method that reads such a float elsewhere cannot be
stacked; its trials are then trained one by one.

Made for GPUs: four trials at once were twice as fast as one by one (docs/speed_history.md). On a CPU it loses, with 0.6
to 0.8 of the speed.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from pflsweep.config.fields import hyperparameters
from pflsweep.data.loader import ClientData
from pflsweep.engine.cohort import outline
from pflsweep.engine.simulation import Simulation
from pflsweep.engine.workers import Workers
from pflsweep.methods.protocol import Given, Verbs
from pflsweep.ops.vmap import leaves, select, with_client_numbers
from pflsweep.util import trace

T = TypeVar("T")


class NotStackable(Exception):  # noqa: N818 (no error)
    """Raised where the clients of several trials cannot be trained at once."""


@dataclass
class _Fit:
    """One trial's call of `fit`, and its result: the trained work, or an error."""

    number: int  # of the trial in the stack
    verbs: Verbs  # the trial's own
    given: Given
    data: ClientData
    work: Any
    done: bool = False
    error: BaseException | None = None

    def by_itself(self) -> None:
        """Train this trial's clients alone."""
        try:
            self.work = self.verbs.fit(self.given, self.data, self.work)
        except BaseException as error:
            self.error = error


class Stack:
    """The trials that train at once. size: their number at the beginning.

    refused: why clients of different trials were not trained at once; "" as long as they were.
    """

    def __init__(self, trials: int) -> None:
        self.size = self._trials = trials
        self._asked: list[_Fit] = []
        self._changed = threading.Condition()
        self._most = trials  # trials whose clients fit into memory at once
        self.refused = ""

    def trained(self, fit: _Fit) -> Any:
        """Wait for the fits of all trials, and return this trial's trained work. Raises what its own fit raises."""
        with self._changed:
            self._asked.append(fit)
            self._train_if_all_are_here()
            self._changed.wait_for(lambda: fit.done)
        error, fit.error = fit.error, None
        if error is None:
            return fit.work
        try:
            raise error
        finally:
            # Without this the frame and its traceback would refer to each other and keep the memory of what failed.
            del error

    def leave(self) -> None:
        """Note that a trial is over, so that the others no longer wait for it."""
        with self._changed:
            self._trials -= 1
            self._train_if_all_are_here()

    def _train_if_all_are_here(self) -> None:
        """Train the clients of all trials once each of them has called `fit`. The caller holds the lock."""
        if not self._asked or len(self._asked) < self._trials:
            return
        # Sorted by trial: the order in which threads arrive must not change numbers.
        asked, self._asked = sorted(self._asked, key=lambda fit: fit.number), []
        try:
            for alike in _joinable(asked):
                self._train(alike)
        except BaseException as error:  # given to every trial, so that none continues with untrained work
            for fit in asked:
                fit.error = fit.error or error
        finally:
            for fit in asked:
                fit.done = True
            self._changed.notify_all()

    def _train(self, fits: list[_Fit]) -> None:
        """Train fits at once; in halves where memory is too small, and one by one where they cannot be stacked."""
        if len(fits) > self._most:
            middle = (len(fits) + 1) // 2
            self._train(fits[:middle])
            self._train(fits[middle:])
            return
        if len(fits) > 1 and not self.refused:
            try:
                _fit_together(fits)
                return
            except torch.OutOfMemoryError:
                self._most = len(fits) // 2
            except Exception as error:  # if a trial itself is at fault, its own fit below raises the same
                self.refused = f"{type(error).__name__}: {error}"
        # Outside of `except`, which would keep the memory of what failed.
        if self._most < len(fits):
            self._train(fits)
            return
        for fit in fits:
            fit.by_itself()


class StackMember(NamedTuple):
    """A trial of a stack, which joins it by its simulation."""

    stack: Stack
    number: int

    def join(self, simulation: Simulation) -> None:
        """Make a simulation train in the stack.

        Private training is not stacked, since it counts what each client spends. The simulation trains in this process,
        without workers: a process of several threads must not fork.
        """
        verbs = simulation.verbs
        simulation.schedule, simulation.workers = replace(simulation.schedule, workers=1), Workers(1)
        if verbs.epsilon is not None:
            return

        def fit(given: Given, data: ClientData, work: Any) -> Any:
            return self.stack.trained(_Fit(self.number, verbs, given, data, work))

        simulation.verbs = verbs._replace(fit=fit)


def _joinable(fits: list[_Fit]) -> list[list[_Fit]]:
    """Return fits in groups whose trees can be joined: trials may be in different rounds."""
    groups: list[tuple[Any, list[_Fit]]] = []
    for fit in fits:
        like = _like(fit)
        for known, group in groups:
            if known == like:
                group.append(fit)
                break
        else:
            groups.append((like, [fit]))
    return [group for _, group in groups]


def _like(fit: _Fit) -> Any:
    """Return what has to be equal in fits whose trees are joined: everything but the values of floats."""
    return outline((fit.given, fit.work), lambda leaf: float if isinstance(leaf, float) else leaf)


def _fit_together(fits: list[_Fit]) -> None:
    """Train the clients of all fits at once. Raises NotStackable, or what a method raises that cannot be stacked."""
    counts = [len(fit.given.turn.ids) for fit in fits]
    # The first tensor of floats has the type and the device of weights; one of integers may count steps.
    like = next(leaf for leaf in leaves(fits[0].work) if leaf.is_floating_point())

    def each_own(values: Sequence[float]) -> Tensor:
        """Return [C]: for each client the value of its trial."""
        own = [value for value, count in zip(values, counts, strict=True) for _ in range(count)]
        return torch.tensor(own, dtype=torch.float64).to(like)

    tasks = [fit.verbs.method.task for fit in fits if fit.verbs.method is not None]
    if len({task.precision for task in tasks}) > 1:
        raise NotStackable("the trials' gradients are computed in different precisions")
    method = _several([fit.verbs.method for fit in fits], each_own)
    plugins = [_several(list(those), each_own) for those in zip(*(fit.verbs.plugins for fit in fits), strict=True)]
    given, work = (_concatenated([getattr(fit, name) for fit in fits], each_own) for name in ("given", "work"))
    with ClientData.joined([fit.data for fit in fits]) as data:
        work = Verbs.of(method, *plugins).fit(given, data, work)
    start = 0
    for fit, count in zip(fits, counts, strict=True):
        fit.work = select(work, slice(start, start + count))
        start += count


def _concatenated(trees: list[Any], each_own: Callable) -> Any:
    """Return trees joined along the clients. each_own: makes a tensor [C] of floats that differ among the trees."""
    first = trees[0]
    if isinstance(first, Tensor):
        return torch.cat(trees)
    if isinstance(first, tuple):
        mapped = [_concatenated(list(parts), each_own) for parts in zip(*trees, strict=True)]
        return type(first)._make(mapped) if hasattr(first, "_make") else tuple(mapped)
    if isinstance(first, dict):
        return {name: _concatenated([tree[name] for tree in trees], each_own) for name in first}
    return first if all(tree == first for tree in trees) else each_own(trees)


def _several(owners: list[Any], each_own: Callable) -> Any:
    """Return one method or plug-in for several, with tensors [C] in place of floats in which they differ.

    Raises NotStackable if they differ in anything but floats.
    """
    first, numbers = owners[0], {}
    for name in [*hyperparameters(type(first)), "opt", "epochs"]:
        values = [getattr(owner, name, None) for owner in owners]
        if all(value == values[0] for value in values):
            continue
        if not all(isinstance(value, float) for value in values):
            raise NotStackable(f"{name} is {values[0]!r} and {next(v for v in values if v != values[0])!r}")
        numbers[name] = each_own(values)
    return with_client_numbers(first, numbers) if numbers else first


def _without_frames(error: BaseException) -> BaseException:
    """Return an error with its traceback as a note: its frames would keep a trial's models until all trials end."""
    error.add_note(trace.text(error))
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def run_stack(trials: Sequence[Callable[[StackMember], T]]) -> tuple[list[T | BaseException], Stack]:
    """Run trials as one stack, each in a thread of its own, and return their results and the stack.

    trials: functions that are called with their StackMember. A result is what the function has returned or raised.
    """
    stack = Stack(len(trials))
    ended: list[Any] = [None] * len(trials)
    device = torch.cuda.current_device() if torch.cuda.is_available() else None

    def run(k: int) -> None:
        try:
            if device is not None:
                torch.cuda.set_device(device)  # each thread has a current device of its own
            ended[k] = trials[k](StackMember(stack, k))
        except BaseException as error:
            ended[k] = _without_frames(error)
        finally:
            stack.leave()

    threads = [threading.Thread(target=run, args=(k,), daemon=True) for k in range(len(trials))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ended, stack
