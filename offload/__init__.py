"""Memory and transfers between device, host and disk."""
