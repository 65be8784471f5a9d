"""The conformance suite: properties that every method has to have, tested on tiny federations."""
