"""Thin faces over the service: parse, call, show."""
