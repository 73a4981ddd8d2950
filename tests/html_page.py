"""An HTML page as a strict reader sees it: every element closed in order, its texts, attributes and numbers."""

from __future__ import annotations

import dataclasses
from html.parser import HTMLParser

_VOID = {"meta", "br", "hr", "img", "link", "input"}
_SVG_SHAPES = {"line", "rect", "circle", "path"}


@dataclasses.dataclass
class Element:
    """One element of the page."""

    tag: str
    attributes: dict[str, str]
    text: str = ""
    """Of itself and of what it holds."""


class Page(HTMLParser):
    """Raises AssertionError where elements are not closed in their order."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[Element] = []
        self.declarations: list[str] = []
        self._open: list[Element] = []
        self.feed(text)
        self.close()
        assert not self._open, f"never closed: {[element.tag for element in self._open]}"

    def all(self, tag: str) -> list[Element]:
        return [element for element in self.elements if element.tag == tag]

    def with_attribute(self, name: str) -> list[Element]:
        return [element for element in self.elements if name in element.attributes]

    def handle_decl(self, decl: str) -> None:
        self.declarations.append(decl)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), f"{tag} has an attribute twice"
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.elements.append(element)
        if tag not in _VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in _SVG_SHAPES, f"<{tag}/> closes itself only inside SVG"
        self.elements.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open[-1].tag == tag, f"</{tag}> closes {[e.tag for e in self._open[-2:]]}"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.text += data
