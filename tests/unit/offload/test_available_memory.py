"""Memory that may still be had, read from trees of files as the kernel lays them out."""

from __future__ import annotations

from pathlib import Path

from offload.available_memory import available_memory_bytes

GIB = 1024**3


def _write(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": f"MemTotal: 99 kB\nMemAvailable:   {8 * GIB // 1024} kB\n", **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_the_machine_bounds_where_no_group_does(tmp_path: Path) -> None:
    assert available_memory_bytes(_write(tmp_path, {})) == 8 * GIB
    files = {"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "max\n"}
    assert available_memory_bytes(_write(tmp_path, {**files, "sys/fs/cgroup/a/memory.current": "5\n"})) == 8 * GIB


def test_the_closest_group_or_one_around_it_bounds(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/outer/inner\n",
        "sys/fs/cgroup/outer/memory.max": f"{3 * GIB}\n",
        "sys/fs/cgroup/outer/memory.current": f"{2 * GIB}\n",
        "sys/fs/cgroup/outer/memory.stat": f"anon 7\ninactive_file {GIB // 2}\n",
        "sys/fs/cgroup/outer/inner/memory.max": f"{2 * GIB}\n",
        "sys/fs/cgroup/outer/inner/memory.current": "0\n",
    }
    assert available_memory_bytes(_write(tmp_path, files)) == GIB + GIB // 2


def test_a_group_of_version_1_bounds(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "4:cpu:/x\n3:hugetlb,memory:/box\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "1\n",
        "sys/fs/cgroup/memory/box/memory.limit_in_bytes": f"{GIB}\n",
        "sys/fs/cgroup/memory/box/memory.usage_in_bytes": f"{GIB + 1}\n",
    }
    assert available_memory_bytes(_write(tmp_path, files)) == 0


def test_a_system_that_does_not_say_bounds_nothing(tmp_path: Path) -> None:
    assert available_memory_bytes(tmp_path) is None
