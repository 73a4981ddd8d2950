"""The parts of a decoder layer."""
