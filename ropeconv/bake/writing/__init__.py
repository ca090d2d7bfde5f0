"""How an output is written: a locked hidden folder, a journal of it, the files, and the move to their names."""
