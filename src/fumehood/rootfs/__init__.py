"""Root trees: where Alpine comes from, how it is installed, what is in it."""
