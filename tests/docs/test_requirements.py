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


def test_the_table_says_of_what_is_built_in_part_which_part_has_passed() -> None:
    page = (
        "| SOME-01 | A rule. **Built so far: this; that is not.** | any | passed |\n"
        "| SOME-02 | A rule. **Built so far: this; that is not.** | any | failed |\n"
        "| SOME-03 | A rule. | any | passed |\n"
    )
    assert [row.line(7) for row in conformance.rows(page)] == [
        "SOME-01       7 tests  passed in part  built so far: this; that is not",
        "SOME-02       7 tests  failed          built so far: this; that is not",
        "SOME-03       7 tests  passed          A rule.",
    ]


def test_every_mark_of_what_is_built_in_part_is_read() -> None:
    page = conformance.PAGE.read_text("utf-8")
    marked = [row for row in conformance.rows(page) if row.built is not None]
    assert len(marked) == page.count("Built so far") > 0
