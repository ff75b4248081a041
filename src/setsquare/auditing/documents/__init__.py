"""Documents of audits and comparisons: the sections and their content."""
