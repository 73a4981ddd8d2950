import os
from pathlib import Path

import pytest

from engine.processors import Processors, available_processors, fixed_threads


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


@pytest.fixture
def affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four processors out of eight."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 4, 6}, raising=False)


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        pytest.param({}, None, id="no Linux"),
        pytest.param({"proc/self/cgroup": "0::/"}, None, id="no files of the group"),
        pytest.param({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "max 100000"}, None, id="no limit"),
        pytest.param({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "garbage"}, None, id="garbage"),
        pytest.param({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "100000 0"}, None, id="no period"),
        pytest.param({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "150000 100000"}, 1.5, id="container"),
        pytest.param(
            {
                "proc/self/cgroup": "0::/a.slice/b.service/c",
                "sys/fs/cgroup/a.slice/b.service/c/cpu.max": "max 100000",
                "sys/fs/cgroup/a.slice/b.service/cpu.max": "50000 20000",
                "sys/fs/cgroup/a.slice/cpu.max": "300000 100000",
            },
            2.5,
            id="the group around it binds",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "0::/a/b",
                "sys/fs/cgroup/a/b/cpu.max": "200000 100000",
                "sys/fs/cgroup/a/cpu.max": "300000 100000",
                "sys/fs/cgroup/elsewhere/cpu.max": "100000 100000",
            },
            2.0,
            id="its own binds",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "5:cpu,cpuacct:/docker/0123\n3:cpuset:/x\n0::/",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "350000",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            3.5,
            id="version 1, the container's group is mounted as the root",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "1:cpu:/jobs/mine",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
                "sys/fs/cgroup/cpu/jobs/mine/cpu.cfs_quota_us": "20000",
                "sys/fs/cgroup/cpu/jobs/mine/cpu.cfs_period_us": "100000",
            },
            0.2,
            id="version 1, a group within",
        ),
    ],
)
@pytest.mark.usefixtures("affinity")
def test_the_smallest_quota_around_the_process_counts(
    files: dict[str, str], quota: float | None, tmp_path: Path
) -> None:
    assert available_processors(write(tmp_path, files)) == Processors(4, 4, quota)


@pytest.mark.parametrize("name", ["core_cpus_list", "thread_siblings_list"])
@pytest.mark.usefixtures("affinity")
def test_hyper_threads_of_one_core_are_one_core(name: str, tmp_path: Path) -> None:
    siblings = {0: "0,4", 1: "1,5", 2: "2,6", 3: "3,7", 4: "0,4", 5: "1,5", 6: "2,6", 7: "3,7"}
    files = {f"sys/devices/system/cpu/cpu{n}/topology/{name}": text for n, text in siblings.items()}
    assert available_processors(write(tmp_path, files)) == Processors(4, 3, None)


def test_this_machine_has_a_core() -> None:
    found = available_processors()
    assert 1 <= found.compute_threads <= found.num_cores <= found.num_logical


@pytest.mark.parametrize(
    ("num_cores", "quota", "threads"),
    [(8, None, 8), (8, 3.0, 3), (8, 3.9, 3), (2, 3.0, 2), (8, 1.5, 1), (8, 0.2, 1), (1, None, 1)],
)
def test_a_thread_computes_on_each_core_within_the_whole_processors_of_the_quota(
    num_cores: int, quota: float | None, threads: int
) -> None:
    assert Processors(2 * num_cores, num_cores, quota).compute_threads == threads


def test_the_option_goes_before_the_environment() -> None:
    assert fixed_threads(3, {"OMP_NUM_THREADS": "5"}) == 3
    assert fixed_threads(None, {"OMP_NUM_THREADS": "5"}) == 5
    assert fixed_threads(None, {"OMP_NUM_THREADS": "0"}) == 1
    assert fixed_threads(None, {"OMP_NUM_THREADS": "4,2"}) is fixed_threads(None, {}) is None
