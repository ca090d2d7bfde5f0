"""What a validation prints and draws."""
