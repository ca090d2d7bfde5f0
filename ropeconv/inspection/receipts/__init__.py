"""Receipt, the record of how an output was made, and the functions that write and read it."""
