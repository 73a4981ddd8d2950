"""Bodies of the HTTP API, in and out: their types, bounds and documentation."""
