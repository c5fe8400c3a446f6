"""What boxmaker costs, beside a floor and beside others: ``make bench`` (docs/performance.md)."""
