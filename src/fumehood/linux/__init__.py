"""The kernel and the file system."""
