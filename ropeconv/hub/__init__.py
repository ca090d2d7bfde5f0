"""Publishing on the Hub: the set of files, the commit, and the model card."""
