"""The programs ``loopd`` and ``bxctl``, and the one place that wires drivers to the loop."""
