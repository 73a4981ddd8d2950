"""A load generator that speaks HTTP to any OpenAI-compatible server."""
