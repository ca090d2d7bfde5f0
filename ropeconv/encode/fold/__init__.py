"""A fold: factors in the weights, from the rows that take them to the bytes that change."""
