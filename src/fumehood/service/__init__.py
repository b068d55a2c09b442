"""The story of one command, and of taking it back."""
