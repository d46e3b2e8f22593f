"""What is installed on other machines: one namespace package, typed, with its SQL."""

import zipfile

import pytest

from tests.support.installs import build_wheel
from tests.support.repository import ROOTS, package


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The names of all files in a wheel built from this checkout."""
    wheel = build_wheel(tmp_path_factory.mktemp("wheel"))
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_the_wheel_installs_nothing_but_tenure(wheel_names: list[str]) -> None:
    tops = {name.partition("/")[0] for name in wheel_names}
    (information,) = tops - {"tenure"}
    assert information.startswith("tenure-")
    assert information.endswith(".dist-info")
    inner = {name.split("/")[1] for name in wheel_names if name.startswith("tenure/")}
    assert inner == set(ROOTS)


def test_the_wheel_carries_every_source_file(wheel_names: list[str]) -> None:
    """Python, type markers and SQL: a query left out would fail only on the user's machine."""
    expected = {
        f"tenure/{root}/{file.relative_to(package(root))}"
        for root in ROOTS
        for file in package(root).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert {f"tenure/{root}/py.typed" for root in ROOTS} <= expected
    assert expected <= set(wheel_names)


def test_the_wheel_has_its_command_and_licence(wheel_names: list[str]) -> None:
    names = {name.partition("/")[2] for name in wheel_names if ".dist-info/" in name}
    assert {"entry_points.txt", "METADATA", "licenses/LICENSE"} <= names
