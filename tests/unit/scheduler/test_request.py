"""States and counts of a request."""

import pytest

from scheduler.request import InvalidTransition, RequestStatus
from tests.scheduler_builders import make_request

LEGAL = {
    (RequestStatus.WAITING, RequestStatus.RUNNING),
    (RequestStatus.WAITING, RequestStatus.FINISHED),
    (RequestStatus.RUNNING, RequestStatus.WAITING),
    (RequestStatus.RUNNING, RequestStatus.FINISHED),
}


@pytest.mark.parametrize("source", RequestStatus)
@pytest.mark.parametrize("target", RequestStatus)
def test_only_the_edges_of_the_table_can_be_walked(source: RequestStatus, target: RequestStatus) -> None:
    request = make_request("a", 4, 1)
    request.status = source
    if (source, target) in LEGAL:
        request.move(target)
        assert request.status is target
    else:
        with pytest.raises(InvalidTransition, match=f"a: {source.value} -> {target.value}"):
            request.move(target)


def test_what_is_left_to_compute() -> None:
    request = make_request("a", 5, 3)
    assert request.num_tokens_to_compute == 5
    request.num_scheduled_tokens, request.num_pending_samples = 5, 1
    assert request.num_tokens_to_compute == 1, "the token in flight can be scheduled as a placeholder"
    request.commit(5, True, 1.0)
    assert (request.num_tokens, request.position, request.num_tokens_to_compute) == (6, 5, 1)


def test_the_last_output_token_is_never_computed() -> None:
    request = make_request("a", 5, 2)
    request.num_scheduled_tokens, request.num_pending_samples = 6, 2
    assert request.spec.num_kv_tokens == 6 and request.num_tokens_to_compute == 0
    assert make_request("b", 5, 0).spec.num_kv_tokens == 5


def test_a_preemption_forgets_the_computed_and_remembers_how_far_it_was() -> None:
    request = make_request("a", 5, 3)
    request.num_scheduled_tokens, request.num_pending_samples = 5, 1
    request.commit(5, True, 1.0)
    request.num_scheduled_tokens = 1
    request.forget_computed()
    assert (request.position, request.num_pending_samples, request.num_lost_tokens) == (0, 0, 5)
    assert request.num_tokens_to_compute == 6 and request.first_token_s == 1.0


def test_a_request_is_itself_only() -> None:
    assert make_request("a", 4, 1) != make_request("a", 4, 1)
