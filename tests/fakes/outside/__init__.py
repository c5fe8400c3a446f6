"""Drivers by somebody else: nothing here is part of boxmaker, and boxmaker does not know of it."""
