"""Numbers by protected group with simultaneous confidence intervals, and the tables of legal standards."""
