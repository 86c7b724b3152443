"""Circuit breakers of models at backends: what they let through, what they learn, and their metrics."""
