"""The checks of `semantics.py`, by subject."""
