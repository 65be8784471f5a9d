"""The conformance suite: what every method owes to those who run it, tried on tiny federations."""
