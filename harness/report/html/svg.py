"""SVG by hand: elements as escaped text. Colours are CSS classes: light and dark share one drawing."""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import Markup, escape


def element(name: str, *children: Markup, **attributes: object) -> Markup:
    """Return one element; an attribute `class_` is `class`, underscores are dashes, floats are shortened."""
    text = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(number(value))}"' for key, value in attributes.items()
    )
    inside = "".join(children)
    return Markup(f"<{name}{text}>{inside}</{name}>" if inside else f"<{name}{text}/>")  # all escaped above


def number(value: object) -> str:
    """Return a value as attribute text: floats with one digit after the point at most."""
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)


def title(text: str) -> Markup:
    """Return what a pointer sees of the element around it."""
    return element("title", escape(text))


def label(x: float, y: float, text: str, class_: str = "", **attributes: object) -> Markup:
    """Return a text at a point."""
    return element("text", escape(text), x=x, y=y, **({"class_": class_} if class_ else {}), **attributes)


def boxes(places: Iterable[tuple[float, float, float, float]], class_: str, *children: Markup) -> Markup:
    """Return rectangles (x, y, width, height) of one class as a single path; nothing for none."""
    path = "".join(
        f"M{number(x)} {number(y)}h{number(width)}v{number(height)}h{number(-width)}z"
        for x, y, width, height in places
    )
    return element("path", *children, class_=class_, d=path) if path else Markup("")


def drawing(width: float, height: float, name: str, *children: Markup) -> Markup:
    """Return a whole drawing with its accessible name, in pixels."""
    return element(
        "svg",
        *children,
        role="img",
        aria_label=name,
        viewBox=f"0 0 {number(width)} {number(height)}",
        width=width,
        height=height,
    )
