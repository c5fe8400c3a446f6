"""The promise about the prompt cache, on a real engine: ``make cache-proof``."""
