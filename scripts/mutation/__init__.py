"""Mutation testing by sample: mutmut's operators, and a runner of our own.

mutmut itself draws no sample by seed, has one list of tests for every file, and leaves decorated functions and code
outside of functions alone; cosmic-ray runs one command per session and changes the files of the working tree.
"""
