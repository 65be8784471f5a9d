"""pflsweep: declarative experiment sweeps for personalised federated learning."""

__version__ = "0.1.0"
