import pytest

from engine.runner_factory import max_model_len


def test_the_models_limit_is_capped_by_the_kv_cache() -> None:
    assert max_model_len(None, model_max_len=2048, kv_cache_tokens=10_000) == 2048
    assert max_model_len(None, model_max_len=2048, kv_cache_tokens=512) == 512
    assert max_model_len(300, model_max_len=2048, kv_cache_tokens=512) == 300


@pytest.mark.parametrize(
    ("wanted", "message"),
    [(4096, "is 4096, the model allows 2048 tokens"), (1024, "the KV cache holds 512 tokens; raise --kv-cache-memory")],
)
def test_more_than_there_is_names_the_limit(wanted: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        max_model_len(wanted, model_max_len=2048, kv_cache_tokens=512)
