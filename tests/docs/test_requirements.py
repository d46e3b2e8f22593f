"""``docs/requirements.md`` says which tests there are for which requirement."""

from tests.support import conformance


def test_the_page_names_the_tests_there_are() -> None:
    page = conformance.PAGE.read_text(encoding="utf-8")
    assert page == conformance.filled_in(page), "stale: python -m tests.support.conformance"


def test_every_requirement_that_a_test_names_is_listed() -> None:
    listed = {row.identity for row in conformance.rows(conformance.PAGE.read_text("utf-8"))}
    assert set(conformance.tests_by_requirement()) - listed == set()


def test_a_row_without_a_test_says_so() -> None:
    page = "| NONE-01 | A rule. |  | passed |\n"
    assert conformance.filled_in(page) == "| NONE-01 | A rule. |  | no test yet |\n"
