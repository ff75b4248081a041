"""Monitoring of rows that arrive over time: an anytime-valid test and a confidence sequence for each group."""
