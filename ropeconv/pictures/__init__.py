"""Plots in one style, readable on white, on black and on paper."""
