"""Decisions as plain values: no disk, no process, no clock."""
