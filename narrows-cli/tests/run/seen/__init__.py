"""The checks of `semantics.py`, by what they are about."""
