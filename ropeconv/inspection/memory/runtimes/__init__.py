"""The memory of each runtime: a module with a subclass of `RuntimeMemory`."""
