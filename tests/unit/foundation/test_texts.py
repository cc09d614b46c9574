"""What others have written, in a log."""

import pytest

from glidemq_orchestrate.foundation.texts import in_block, in_line, in_text

FORGED = "2026-01-01 - dagster - ERROR - all \x1b[31mis lost"
ODD = (0, 7, 8, 13, 27, 127, 0x85, 0x9B, 0x2028, 0x2029, 0x202E, 0x2067, 0xD800)


def test_what_changes_a_log_is_escaped_and_the_rest_stays(subtests: pytest.Subtests) -> None:
    for sign in [chr(code) for code in ODD]:
        with subtests.test(sign=sign):
            shown = in_line(f"é\t日{sign}x")
            assert shown == f"é\t日{sign.encode('unicode_escape').decode()}x"
            assert in_text(f"é\t日{sign}x") == shown


def test_no_line_but_the_first_begins_at_the_first_column() -> None:
    harmless = FORGED.replace("\x1b", "\\x1b")
    assert in_line(f"no\n{FORGED}") == f"no\\n{harmless}"
    assert in_text(f"no\n{FORGED}\r\n") == f"no\n    {harmless}\\r\n    "
    assert in_block([f"a\n{FORGED}", "b"]).split("\n") == ["    a", f"        {harmless}", "    b"]
