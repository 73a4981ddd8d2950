from server.backoff import Backoff


def test_waits_double_up_to_the_limit() -> None:
    backoff = Backoff(first_s=0.5, max_s=3.0, healthy_s=60.0)
    assert [backoff.next_s(ran_s=1.0) for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_a_healthy_run_starts_over() -> None:
    backoff = Backoff(first_s=0.5, max_s=30.0, healthy_s=60.0)
    assert [backoff.next_s(ran_s) for ran_s in (0.0, 59.0, 60.0, 0.0)] == [0.5, 1.0, 0.5, 1.0]
