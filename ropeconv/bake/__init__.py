"""Plans, which are made from a source, a recipe and a target, and their execution."""
