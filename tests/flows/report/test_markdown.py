"""Text of a stranger in Markdown: shown as it is, whatever it is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from flows.report.markdown import fenced, markdown_table, mermaid_label, plain

READER = MarkdownIt("commonmark", {"html": True}).enable("table")
HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(2)>",
    "![x](http://evil.example/track.png) [click](javascript:alert(3)) [a]: http://x",
    "a | b \\| c `d` **e** _f_ ~~g~~ &lt;i&gt;",
    "\n\n# HEAD\n```\nx\n```\n- - -",
    "www.evil.example, me@evil.example and <http://evil.example>",
    "\x1b[31mRED\x07\u202eevil",
)


def shown(text: str) -> tuple[list[str], str]:
    """Returns the kinds of markup in a Markdown text, and the text that its reader sees."""
    kinds, words = [], []
    for block in READER.parse(text):
        for token in [block, *(block.children or ())]:
            kinds.append(token.type)
            if token.type == "text":
                words.append(token.content)
    return kinds, "".join(words)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_strangers_text_is_no_markup(text: str):
    kinds, _words = shown(f"seen: {plain(text)}")
    assert not {*kinds} - {"paragraph_open", "paragraph_close", "inline", "text", "text_special"}
    assert "\x1b" not in plain(text)
    assert "\u202e" not in plain(text)
    assert "\n" not in plain(text)
    assert "://" not in plain(text)  # Else the UI makes links of addresses.


def test_a_strangers_address_becomes_no_link_and_names_nobody():
    """The UI makes links of addresses, which need an "@" behind a word."""
    assert plain("write to me@example.org") == "write to me&#64;example.org"
    assert plain("acc@5 @home") == "acc&#64;5 @home"


def test_names_of_this_field_stay_as_they_are():
    for name in ("transfer m3 chartqa:test_human seed=48213", "CC-BY-4.0", "mixture/web", "3.5"):
        assert plain(name) == name


@given(st.text(max_size=40))
def test_a_cell_of_a_table_stays_one_cell(text: str):
    table = markdown_table(["a", "b"], [[plain(text), "last"]], range(2))
    kinds, words = shown(table)
    assert kinds.count("td_open") == 2
    assert "html_inline" not in kinds
    assert words.endswith("last")


@given(st.lists(st.text("`~ \nab", max_size=8), max_size=4))
def test_a_fenced_block_ends_where_it_should(lines: list[str]):
    tokens = READER.parse("\n".join([*fenced("text", lines), "", "after"]))
    assert [token.type for token in tokens][:2] == ["fence", "paragraph_open"]


def test_a_label_of_mermaid_stays_within_its_quotes():
    label = mermaid_label('x"]; click n0 "javascript:alert(1)"\n<b>')
    assert not {'"', "<", ">", "]", ";\n", "\n"} & {*label.replace("#34;", "")} - {"\n"}
    assert label.startswith("x#34;#93;#59; click")
