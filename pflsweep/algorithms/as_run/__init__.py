"""Variants of methods as authors' public code computes them, where that differs from the method's paper.

Each variant has a file, named after the code base: pfedplat (of FedPG's authors), pgfed, pfllib (of FedALA's authors),
fedfomo. With them a table can be run as its numbers were computed (`reading=code`). To use a method, take the one of
its paper.
"""
