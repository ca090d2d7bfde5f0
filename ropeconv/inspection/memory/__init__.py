"""The memory that a model needs in each runtime, and whether it fits a machine.

Read `fit.py` first: `find_fit` answers the question. `shape.py` has the numbers of a model,
`machine.py` the memory of this computer, and `runtimes/` the formulas of each runtime.
"""
