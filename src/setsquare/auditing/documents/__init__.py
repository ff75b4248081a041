"""Documents of audits and comparisons: which sections there are, and what stands in them."""
