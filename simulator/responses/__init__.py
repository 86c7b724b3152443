"""Response bodies of the simulated backend, as JSON and as streams of events."""
