"""Results of a batch while it runs: its settled lines, the two reading orders, and the response."""
