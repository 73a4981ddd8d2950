"""Recorded load: one canonical form of a trace, importers of published ones, and what a trace is like."""
