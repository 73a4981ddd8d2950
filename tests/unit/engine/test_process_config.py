import dataclasses

import msgspec
import pytest

from engine.config import EngineConfig
from engine.process_config import ProcessConfig
from scheduler.config import SchedulerConfig
from scheduler.slo import DEFAULT_CLASSES

CONFIG = ProcessConfig(
    EngineConfig("model.gguf", dtype="float32", threads=2),
    SchedulerConfig(block_size=8),
    "ipc://a/0.in",
    "ipc://a/0.out",
    parent_pid=7,
    classes=DEFAULT_CLASSES[1:3],
    default_class="interactive",
)


def test_a_configuration_survives_the_way_to_the_process() -> None:
    assert ProcessConfig.decode(CONFIG.encode()) == CONFIG
    assert CONFIG.slo_classes.default.name == "interactive"


def test_what_is_no_configuration_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="engine"):
        ProcessConfig.decode(b'{"scheduler": {}}')
    broken = dataclasses.replace(CONFIG, default_class="gold")
    with pytest.raises(ValueError, match="gold"):
        _ = ProcessConfig.decode(broken.encode()).slo_classes
