"""What is kept of an SVG, and what is not drawn."""

import pytest

pytest.importorskip("resvg_py")
pytest.importorskip("defusedxml")

import numpy as np

from vagentrl_envs.svg.markup import Limits, Refused, clean
from vagentrl_envs.svg.picture import on_paper

LIMITS = Limits()
RED = '<rect width="100" height="100" fill="red"/>'
ROUND = 'stroke="red" stroke-linejoin="round" stroke-linecap="round"'


def kept(body: str, root: str = 'viewBox="0 0 100 100"') -> str:
    """What is kept of the elements inside an `svg` element."""
    whole = clean(f'<svg xmlns:xlink="http://www.w3.org/1999/xlink" {root}>{body}</svg>', LIMITS)
    head, _, rest = whole.partition(">")
    assert head.startswith('<svg xmlns="http://www.w3.org/2000/svg"')
    return rest.removesuffix("</svg>")


def refusal(text: str, limits: Limits = LIMITS) -> str:
    with pytest.raises(Refused) as refused:
        clean(text, limits)
    return str(refused.value)


def test_shapes_with_their_paints_and_transforms_are_kept():
    body = '<g transform="rotate(45 50 50)" opacity=".5"><path d="M1-2e1L.5,7" fill="#f0a" /></g>'
    assert kept(body) == body


def test_declarations_of_style_become_attributes():
    assert kept('<circle r="9" style="fill: rgb(1, 2, 3); filter: url(#f); x-y:;"/>') == (
        '<circle r="9" fill="rgb(1, 2, 3)" />'
    )


def test_paint_of_the_root_is_inherited():
    whole = clean('<svg fill="none" stroke="red" onload="x()"><path d="M0 0L9 9"/></svg>', LIMITS)
    assert 'fill="none"' in whole and 'stroke="red"' in whole and "onload" not in whole


@pytest.mark.parametrize(
    "element",
    [
        '<image href="file:///etc/passwd" width="9" height="9"/>',
        '<use href="#a"/>',
        "<script>alert(1)</script>",
        "<style>@import url(file:///etc/passwd);</style>",
        "<foreignObject><p>x</p></foreignObject>",
        '<filter id="f"><feTurbulence numOctaves="200000"/></filter>',
        '<pattern id="p" width="1e-9" height="1e-9"><rect width="1" height="1"/></pattern>',
        '<mask id="m"><rect width="9" height="9"/></mask>',
        '<clipPath id="c"><rect width="9" height="9"/></clipPath>',
        "<text>words</text>",
        '<svg width="9" height="9"><circle r="3"/></svg>',
        '<switch><circle r="3"/></switch>',
        '<a href="http://example.org"><circle r="3"/></a>',
        '<x:rect xmlns:x="http://example.org" width="9" height="9"/>',
        '<stop offset="1"/>',
        "<!-- a comment --><?php echo 1 ?>",
    ],
)
def test_other_elements_are_left_out(element: str):
    assert kept(element + RED) == kept(RED)


@pytest.mark.parametrize(
    "attribute",
    [
        'onclick="x()"',
        'fill="url(file:///etc/passwd)"',
        'fill="url(http://example.org/#a)"',
        'style="fill:url(//example.org)"',
        'filter="url(#f)"',
        'mask="url(#m)"',
        'clip-path="url(#c)"',
        'marker-start="url(#m)"',
        'stroke-dasharray="0.0001"',
        'class="a"',
        'href="#a b"',
        'xlink:href="file:///etc/passwd"',
        'transform="url(#a)"',
        'width="calc(1px)"',
        'width="9in"',
        'id="<image>"'.replace("<", "&lt;"),
    ],
)
def test_other_attributes_and_links_to_elsewhere_are_left_out(attribute: str):
    name = attribute.partition("=")[0]
    rest = RED if name not in ("fill", "width") else RED.replace(f" {name}=", " data-x=")
    assert kept(rest.replace("<rect", f"<rect {attribute}")) == kept(rest)


def test_a_gradient_may_refer_to_another_one_by_its_name():
    body = '<linearGradient id="a" href="#b" /><rect width="9" height="9" fill="url(#a)" />'
    assert kept(body) == body


def test_entities_are_refused_and_never_expanded():
    bomb = "".join(f'<!ENTITY e{i} "{f"&e{i - 1};" * 10}">' for i in range(1, 20))
    text = f'<!DOCTYPE svg [<!ENTITY e0 "ha">{bomb}]><svg>&e19;{RED}</svg>'
    assert "well-formed" in refusal(text)  # what stands before <svg is not read
    assert "XML" in refusal(f"<svg>{RED}<!DOCTYPE svg></svg>")


def test_text_around_the_drawing_does_not_matter():
    fenced = f"Here it is:\n```svg\n<svg>{RED}</svg>\n```"
    assert clean(fenced, LIMITS) == clean(f"<svg>{RED}</svg>", LIMITS)


def test_limits_of_length_number_and_depth():
    assert "longer than 40" in refusal(f"<svg>{RED}</svg>", Limits(characters=40))
    assert "too many" in refusal(f"<svg>{RED * 3}</svg>", Limits(elements=2))
    assert clean(f"<svg>{RED * 2}</svg>", Limits(elements=2))
    nested = "<g>" * 30 + RED + "</g>" * 30
    assert "nested deeper" in refusal(f"<svg>{nested}</svg>")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no <svg> element"),
        ("<svg>", "no <svg> element"),
        ("<svg></svg>", "draws no shape"),
        (f"<svg><defs>{RED}</defs></svg>", "draws no shape"),
        (f"<svg>{RED}</g></svg>", "well-formed"),
        (f'<svg viewBox="0 0 0 9">{RED}</svg>', "viewBox"),
        (f'<svg viewBox="0 0 1e-30 1e-30">{RED}</svg>', "viewBox"),
        (f'<svg viewBox="0 0 1e999 9">{RED}</svg>', "viewBox"),
        (f'<svg viewBox="nan 0 9 9" width="1e9">{RED}</svg>', "viewBox"),
        ("<svg>\x00</svg>", "well-formed"),
        ("<svg>\ud800</svg>", "draws no shape"),  # half of a pair: written as a question mark
    ],
)
def test_what_is_no_drawing_is_refused(text: str, why: str):
    assert why in refusal(text)


@pytest.mark.parametrize(
    "body",
    [
        f'<path d="M0 0L9 9" {ROUND} transform="scale(1e6)"/>',
        f'<g transform="scale(1e3)"><g transform="scale(1e3)"><path d="M0 0L9 9" {ROUND}/></g></g>',
        f'<path d="M0 0L9 9" {ROUND} stroke-width="1e7"/>',
        f'<g stroke-width="1e7"><path d="M0 0L9 9" {ROUND}/></g>',
        f'<path d="M0 0L1e30 9" {ROUND}/>',
        f'<path d="M0 0{"l99999 9" * 9}" {ROUND}/>',  # relative steps add up
        '<rect width="1e999" height="1"/>',
        '<rect width="9" height="9" transform="translate(1e300) scale(1e300)"/>',
        '<rect width="9" height="9" transform="matrix(0 1e9 1e9 0 0 0)"/>',
        '<rect width="9" height="9" transform="skewX(89.9999999)"/>',
        '<circle cx="9e9" r="1"/>',
    ],
)
def test_shapes_far_larger_than_the_picture_are_refused(body: str):
    assert "far larger" in refusal(f'<svg viewBox="0 0 100 100">{body}</svg>')


def test_a_picture_is_as_large_as_asked_whatever_the_drawing_says():
    for root in ('width="1e9" height="1e9" viewBox="0 0 9 9"', 'viewBox="0 0 200 100"', ""):
        whole = clean(f"<svg {root}><rect width='9' height='9' fill='red'/></svg>", LIMITS)
        assert on_paper(whole, 32).shape == (32, 32, 3)


def test_paper_is_white_and_paint_is_what_it_says():
    whole = clean('<svg viewBox="0 0 4 4"><rect width="2" height="4" fill="#00f"/></svg>', LIMITS)
    picture = on_paper(whole, 4)
    assert np.array_equal(picture[:, :2], np.broadcast_to([0, 0, 1], (4, 2, 3)))
    assert np.array_equal(picture[:, 2:], np.ones((4, 2, 3)))
    assert np.array_equal(on_paper(None, 4), np.ones((4, 4, 3)))


def test_gradients_that_refer_to_one_another_end():
    loop = '<linearGradient id="a" href="#b"/><linearGradient id="b" href="#a"/>'
    whole = clean(f'<svg>{loop}<rect width="9" height="9" fill="url(#a)"/></svg>', LIMITS)
    assert on_paper(whole, 16).shape == (16, 16, 3)


def test_a_panic_of_the_renderer_is_a_refusal(monkeypatch: pytest.MonkeyPatch):
    import resvg_py  # pyright: ignore[reportMissingImports]

    class PanicException(BaseException):
        """What a panic in Rust becomes in Python: no subclass of Exception."""

    def panics(**settings: object) -> bytes:
        raise PanicException("range start index out of range")

    monkeypatch.setattr(resvg_py, "svg_to_bytes", panics)
    with pytest.raises(Refused, match="cannot draw"):
        on_paper(clean(f"<svg>{RED}<circle r='1.25'/></svg>", LIMITS), 16)
