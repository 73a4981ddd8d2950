"""Another distribution's package of one of our names is found out."""

from pathlib import Path

import pytest

from server.layout_check import ForeignPackageError, check_layout


def test_our_own_packages_lie_side_by_side() -> None:
    check_layout()


def test_a_package_found_elsewhere_is_named_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(ForeignPackageError, match=r"package 'kernels' at .*kernels.* not in .*pip uninstall kernels"):
        check_layout(tmp_path)
