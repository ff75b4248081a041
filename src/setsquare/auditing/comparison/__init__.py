"""Comparison of several predictions of one outcome: leakage, performance and calibration."""
