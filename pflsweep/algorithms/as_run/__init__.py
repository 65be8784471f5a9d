"""Variants as authors' public code computes them, where that is another computation than the method's paper.

A file a variant, named after the code base: pfedplat (FedPG's authors), pgfed, pfllib (FedALA's), fedfomo. They exist
so that a table can be run as its numbers were made (`reading=code`); to use a method, take the one of its paper.
"""
