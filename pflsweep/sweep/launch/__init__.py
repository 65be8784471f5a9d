"""Start workers: in this process, in others on this machine, on a Dask cluster, or as jobs of a Hydra launcher."""

from hydra.plugins.launcher import Launcher

from pflsweep.config.hydra_private import is_basic
from pflsweep.sweep.launch import dask, hydra_launcher, processes
from pflsweep.sweep.plan import Plan
from pflsweep.sweep.queue import Queue
from pflsweep.sweep.worker import work


def run(queue: Queue, launcher: Launcher) -> None:
    """Train with all workers until the plan is settled.

    Raises KeyboardInterrupt, DiskFull, and UserError where workers cannot be started.
    """
    plan = queue.plan
    if not is_basic(launcher):
        hydra_launcher.run(plan, launcher)
    elif plan.workers.backend == "dask":
        dask.run(queue)
    elif plan.workers.count == 1:
        work(plan)
    else:
        processes.run(plan, queue)


def check(plan: Plan, launcher: Launcher) -> None:
    """Raise UserError if the plan's workers are more than this machine can hold. Workers on a Dask cluster and jobs of
    a launcher run elsewhere and are not checked.
    """
    if is_here(plan, launcher):
        processes.check_count(plan.workers.count)


def is_here(plan: Plan, launcher: Launcher) -> bool:
    """Return whether the workers of a plan are started on this machine."""
    return is_basic(launcher) and plan.workers.backend == "processes"
