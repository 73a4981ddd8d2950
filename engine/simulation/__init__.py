"""The real scheduler and step loop on a virtual clock, under a model of what steps cost."""
