"""Setsquare: models that provably ignore what they must not use."""
