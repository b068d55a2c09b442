"""What we remember, and where it lies on disk."""
