"""Reads SVG that an agent or a file wrote, and keeps only what is safe and quick to draw.

The renderer, resvg, reads local files through `href`, needs a minute for a filter with many octaves
of noise and ten seconds for round strokes a million times larger than the picture, and panics on
still larger ones. So nothing reaches it that is not listed here, and no shape may be far larger
than the picture.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from xml.etree.ElementTree import Element, ParseError, SubElement, tostring

import numpy as np

NAMESPACE = "http://www.w3.org/2000/svg"
SHAPES = ("rect", "circle", "ellipse", "line", "polyline", "polygon", "path")
_GRADIENTS = ("linearGradient", "radialGradient")
_KEPT = {*SHAPES, *_GRADIENTS, "g", "defs", "stop"}
_LENGTHS = {
    "x", "y", "width", "height", "rx", "ry", "cx", "cy", "r", "x1", "y1", "x2", "y2", "fx", "fy",
    "stroke-width", "offset",
}  # fmt: skip
_PAINTS = {"fill", "stroke", "stop-color", "color"}
_WORDS = {
    "fill-opacity", "fill-rule", "stroke-opacity", "stroke-linecap", "stroke-linejoin", "opacity",
    "stop-opacity", "gradientUnits", "spreadMethod", "display", "visibility",
}  # fmt: skip
_INHERITED = {*_PAINTS, *_WORDS, "stroke-width"}
_TRANSFORMS = {"transform", "gradientTransform"}

_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
_LENGTH = re.compile(rf"\s*{_NUMBER}(?:px|%)?\s*")
_NUMBERS = re.compile(_NUMBER)
_PATH = re.compile(r"[MmLlHhVvCcSsQqTtAaZzeE0-9+\-.,\s]*")
_PAINT = re.compile(
    r"#[0-9a-fA-F]{3,8}|[a-zA-Z]{1,24}|rgba?\([0-9.,%\s]{1,40}\)|url\(#[\w\-]{1,40}\)"
)
_WORD = re.compile(r"[\w.%\-]{1,24}")
_NAME = re.compile(r"[\w\-]{1,40}")
_TRANSFORM = re.compile(r"(matrix|translate|scale|rotate|skewX|skewY)\s*\(([^()]*)\)")
_SVG = re.compile(r"<svg\b.*</svg\s*>", re.DOTALL)

_DEEPEST = 24
"""Elements that may stand inside one another."""
_FARTHEST = 2e6
"""Pixels that the coordinates of one shape may add up to, on a picture of 1,000 pixels."""
_BROADEST = 1e4
"""Pixels of the broadest stroke, on a picture of 1,000 pixels."""


class Refused(ValueError):
    """An SVG that is not drawn. The message says why, and quotes nothing that was written."""


@dataclass(frozen=True)
class Limits:
    """How much SVG is read.

    Args:
        characters: Most characters.
        elements: Most shapes, groups and gradients together.
    """

    characters: int = 8000
    elements: int = 64


def clean(text: str, limits: Limits) -> str:
    """The part of an SVG that is drawn, written anew.

    Kept are basic shapes, paths, groups and gradients, with their geometry, colours, opacities and
    transforms. Everything else is left out: links, images, text, scripts, style sheets, filters,
    masks, patterns, markers, dashes, ``use``. Text around the ``svg`` element does not matter.

    Raises:
        Refused: When the text has no ``svg`` element, is longer than allowed, is not XML, declares
            entities, has too many or too deeply nested elements, draws no shape, or draws shapes
            that are far larger than the picture.
    """
    if len(text) > limits.characters:
        raise Refused(f"it is longer than {limits.characters} characters")
    found = _SVG.search(text)
    if found is None:
        raise Refused("it has no <svg> element that begins and ends")
    root = _parse(found[0])
    box = _view_box(root)
    size = {"xmlns": NAMESPACE, "viewBox": " ".join(f"{number:g}" for number in box)}
    painted = {name: value for name, value in _attributes(root).items() if name in _INHERITED}
    written = Element("svg", size | painted)
    scale = np.diag([1000 / max(box[2:])] * 2 + [1.0])
    _copy(root, written, _Place(scale, _stroke(written, 1.0), 0), [limits.elements])
    if next(shapes(written), None) is None:
        raise Refused("it draws no shape")
    return tostring(written, encoding="unicode")


@dataclass(frozen=True)
class _Place:
    """Where an element stands: what its ancestors do to it.

    Attributes:
        matrix: `(3, 3)`, from its own units to those of a picture of 1,000 pixels.
        stroke: The broadest stroke that it may inherit, in its own units.
        depth: How many elements it stands in.
    """

    matrix: np.ndarray
    stroke: float
    depth: int


def _copy(source: Element, target: Element, place: _Place, left: list[int]) -> None:
    """Copy the children that are kept, and theirs.

    Args:
        source: Where the children are.
        target: Where their copies go.
        place: Where the children stand.
        left: How many elements may still be copied.
    """
    if place.depth == _DEEPEST:
        raise Refused(f"elements are nested deeper than {_DEEPEST}")
    for child in source:
        name = _local(child.tag)
        if name not in _KEPT or (name == "stop") != (target.tag in _GRADIENTS):
            continue
        left[0] -= 1
        if left[0] < 0:
            raise Refused("it has too many elements")
        copy = SubElement(target, name, _attributes(child))
        matrix = place.matrix @ _matrix(copy.get("transform", ""))
        inside = _Place(matrix, _stroke(copy, place.stroke), place.depth + 1)
        if name in SHAPES:
            _check_extent(copy, inside)
        else:
            _copy(child, copy, inside, left)


def _stroke(element: Element, inherited: float) -> float:
    numbers = map(float, _NUMBERS.findall(element.get("stroke-width", "")))
    return max(numbers, default=inherited)


def parse_clean(markup: str) -> Element:
    """The element tree of what `clean` returned, without prefixes; `tostring` writes it again."""
    declared = f' xmlns="{NAMESPACE}"'
    root = _parse(markup.replace(declared, "", 1))
    root.set("xmlns", NAMESPACE)
    return root


def shapes(root: Element) -> Iterator[Element]:
    """The shapes that a drawing paints, in this order; those in ``defs`` are not among them."""
    for element in root:
        name = _local(element.tag)
        if name in SHAPES:
            yield element
        elif name == "g":
            yield from shapes(element)


def _parse(text: str) -> Element:
    from defusedxml.common import DefusedXmlException
    from defusedxml.ElementTree import fromstring

    try:
        return fromstring(text.encode("utf-8", "replace"), forbid_dtd=True)
    except DefusedXmlException as error:
        raise Refused("it declares entities or a document type") from error
    except (ParseError, ValueError) as error:
        raise Refused("it is not well-formed XML") from error


def _local(tag: object) -> str:
    """The name of an SVG element or attribute; empty for those of other namespaces."""
    if not isinstance(tag, str):  # a comment or a processing instruction
        return ""
    space, _, name = tag.rpartition("}")
    return name if space in ("", "{" + NAMESPACE) else ""


def _view_box(root: Element) -> list[float]:
    """Left, top, width and height of the picture in the drawing's own units."""
    written = _NUMBERS.findall(root.get("viewBox", ""))
    if len(written) != 4:
        sides = [_NUMBERS.match(root.get(name, "").strip()) for name in ("width", "height")]
        written = ["0", "0", *(side[0] if side else "100" for side in sides)]
    box = [float(number) for number in written]
    if not (max(map(abs, box)) <= 1e4 and min(box[2:]) >= 1):
        raise Refused("its viewBox is not of 1 to 10000 units")
    return box


def _attributes(element: Element) -> dict[str, str]:
    """The attributes that are kept; declarations of ``style`` count as attributes."""
    written = [(_local(name), value) for name, value in element.items()]
    written.append(("href", element.get("{http://www.w3.org/1999/xlink}href", "")))
    for declaration in element.get("style", "").split(";"):
        name, _, value = declaration.partition(":")
        written.append((name.strip(), value))
    return {name: value.strip() for name, value in written if _is_kept(name, value.strip())}


def _is_kept(name: str, value: str) -> bool:
    if name in _LENGTHS:
        return _LENGTH.fullmatch(value) is not None
    if name in _PAINTS:
        return _PAINT.fullmatch(value) is not None
    if name in _WORDS:
        return _WORD.fullmatch(value) is not None
    if name in _TRANSFORMS:
        return _TRANSFORM.sub("", value).strip(" ,\t\r\n") == ""
    if name in ("d", "points"):
        return _PATH.fullmatch(value) is not None
    if name == "href":
        return value.startswith("#") and _NAME.fullmatch(value[1:]) is not None
    return name == "id" and _NAME.fullmatch(value) is not None


def _matrix(transform: str) -> np.ndarray:
    """`(3, 3)`, the transform's effect on column vectors (x, y, 1)."""
    product = np.eye(3)
    for kind, written in _TRANSFORM.findall(transform):
        numbers = [float(number) for number in _NUMBERS.findall(written)]
        first, second = [*numbers, 0.0, 0.0][:2]
        step = np.eye(3)
        if kind == "matrix" and len(numbers) == 6:
            step[:2] = np.reshape(numbers, (3, 2)).T
        elif kind == "translate":
            step[:2, 2] = first, second
        elif kind == "scale" and numbers:
            step[0, 0], step[1, 1] = first, second if len(numbers) > 1 else first
        elif kind == "rotate" and len(numbers) == 3:
            step[:2, 2] = 2 * max(map(abs, numbers[1:]))  # no farther than this
        elif kind.startswith("skew"):
            step[0, 1] = step[1, 0] = np.tan(np.radians(first))
        # A rotation about the origin leaves every distance as it is.
        product = np.abs(product) @ np.abs(step) * (1.5 if kind == "rotate" else 1.0)
    return product


def _check_extent(shape: Element, place: _Place) -> None:
    """Refuse a shape that may be far larger than the picture.

    The coordinates of a path may be relative to one another, so their sum bounds where it goes.
    """
    written = [v for name, v in shape.items() if name in _LENGTHS or name in ("d", "points")]
    total = sum(abs(float(number)) for value in written for number in _NUMBERS.findall(value))
    with np.errstate(over="ignore", invalid="ignore"):
        scale = np.abs(place.matrix[:2, :2]).sum()
        reach = scale * total + np.abs(place.matrix[:2, 2]).sum()
        broad = scale * place.stroke
    if not (reach <= _FARTHEST and broad <= _BROADEST):  # also where either is not a number
        raise Refused("a shape is far larger than the picture")
