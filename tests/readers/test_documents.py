"""Documents in a text: found wherever they stand, in time linear in the text."""

from sickbay.readers.documents import json_documents


def test_documents_are_found_between_braces_that_are_none():
    text = 'a { b } {{{}}}\n{"x": 1} tail {\n"y": 2}\n{ no }'
    assert json_documents(text) == ([{}, {"x": 1}, {"y": 2}], False)


def test_a_document_without_an_end_is_told():
    assert json_documents('{"x": 1}\n{"y": [') == ([{"x": 1}], True)
    assert json_documents('{"a":' * 100_000) == ([], True)


def test_a_text_of_braces_does_not_take_its_length_squared():
    assert json_documents("{" * 2_000_000) == ([], False)
    assert json_documents("{\n" * 1_000_000) == ([], False)
