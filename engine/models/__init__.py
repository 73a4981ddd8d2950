"""One decoder with options, and the table of architectures it covers."""
