"""Hostile and damaged files, made by the tests: none is kept, and what they would run only touches a marker file."""
