"""One module per group of routes; what they share lives beside the folder."""
