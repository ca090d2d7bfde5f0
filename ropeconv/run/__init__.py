"""Many units of work: sources, recipes, targets and tasks from a file, on the processes of one or
several machines.
"""
