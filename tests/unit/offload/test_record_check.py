"""Which steps may be compared when a record is asked whether it can be true."""

from __future__ import annotations

import dataclasses

import pytest

from offload.measurements import LayerPoint
from offload.record_check import ImplausibleRecordError, check_measurements
from tests.record_builders import make_measurements


def test_a_long_prompt_may_take_longer_than_a_decode_of_as_many_tokens_and_contexts() -> None:
    """Each of the prompt's tokens attends to the whole context, each of the others to its own sequence's."""
    measurements = make_measurements()
    prompt = LayerPoint(32, 1, 2048, (4e-3,))
    decode = LayerPoint(32, 32, 2048, (1e-3,))
    check_measurements(dataclasses.replace(measurements, layers=(prompt, decode)))
    fewer = LayerPoint(16, 16, 1024, (4e-3,))
    with pytest.raises(ImplausibleRecordError, match="times must grow with the load"):
        check_measurements(dataclasses.replace(measurements, layers=(fewer, decode)))
