"""Publishing on the Hub: what goes, how it gets there, and the card that says what it is."""
