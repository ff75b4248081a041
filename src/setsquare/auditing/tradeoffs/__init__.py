"""Trade-off between loss and correlation: fits along a path of budgets, measured on training and on new rows."""
