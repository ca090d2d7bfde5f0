"""The verbs of ropeconv: what the command line, the pages, `run`, Python and notebooks call alike.

Nothing here prints. Read `output.py` first: from a model and a recipe to an output that is written,
checked and validated. `batch.py` does that for several outputs, and `apply.py` is the function of
Python. The other modules have one verb or a few of a kind each, and `recipes.py` and `arguments.py`
turn what people pass into a Recipe, a Target and a source.
"""
