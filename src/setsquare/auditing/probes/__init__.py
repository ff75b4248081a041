"""Probes: models that try to recover the protected columns from a representation."""
