"""Slow, literal transcriptions of the papers' algorithm boxes; the engine is compared with them."""
