"""What several folders of tests use; tests/README.md says what is where."""
