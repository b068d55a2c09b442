"""The page in the person's browser."""
