"""Pictures, in one style: readable on paper, on white and on black."""
