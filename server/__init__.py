"""Text and HTTP: the OpenAI-compatible front end, its limits, classes and metrics, and the supervisor of the engine."""
