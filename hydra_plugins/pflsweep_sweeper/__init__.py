"""Hydra takes plug-ins from here alone, and only classes that are defined here."""

from pflsweep.sweep import sweeper


class TrialSweeper(sweeper.TrialSweeper):
    """See pflsweep.sweep.sweeper."""
