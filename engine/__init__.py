"""Tokens: the step loop, the model and the messages between the HTTP process and the engine process."""
