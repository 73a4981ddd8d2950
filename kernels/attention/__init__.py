"""Paged attention behind one interface: a plain PyTorch backend that is right everywhere, and faster ones."""
