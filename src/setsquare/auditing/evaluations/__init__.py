"""Evaluation models: each file regresses predictions on protected columns in one way, or tests their independence."""
