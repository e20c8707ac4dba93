import re
from xml.etree import ElementTree

from harness.picture import Moment, StorageMap, Strip, Timeline, Track
from harness.report.html.ledger import moments_svg, summary, timeline_svg
from harness.report.html.storage import shared, sharing, storage_svg
from harness.report.html.svg import boxes, element, label
from harness.report.words import of_bytes, steps


def strip(step: int, region: int, stop: int, name: str = "a<b>") -> Strip:
    return Strip(step, region, 0, stop, (name,))


SHARED = StorageMap(4, (64, 32), tuple(strip(step, region, 32) for step in range(3) for region in (0, 1)))
APART = StorageMap(4, (64, 64, 64), tuple(strip(step, step, 64) for step in range(3)))
PARTLY = StorageMap(4, (64, 16), (strip(0, 0, 64), strip(1, 0, 16), Strip(1, 1, 0, 16, ("own",))))


def classes(svg: str) -> list[str]:
    root = ElementTree.fromstring(svg)
    return [path.get("class", "") for path in root.iter("path")]


def test_shared_storage_is_drawn_as_shared_and_own_storage_as_own() -> None:
    assert set(classes(storage_svg(SHARED, "shared"))) == {"shared"}
    assert set(classes(storage_svg(APART, "independent"))) == {"own"}
    assert set(classes(storage_svg(PARTLY, "shared"))) == {"shared", "own"}


def test_a_strip_beside_another_in_the_same_allocation_shares_nothing() -> None:
    first, second = Strip(0, 0, 0, 16, ("a",)), Strip(1, 0, 16, 32, ("a",))
    assert not shared(first, (first, second))
    assert shared(first, (first, Strip(1, 0, 15, 32, ("a",))))


def test_sharing_in_words() -> None:
    assert sharing(SHARED) == "Steps 1, 2 share all bytes with step 0."
    assert sharing(APART) == "Steps 1, 2 share nothing with step 0."
    assert sharing(PARTLY) == "Step 1 shares 16 B of 32 B with step 0."
    assert sharing(APART.first_steps(1)) == "One step, 64 B."


def test_the_first_steps_keep_their_allocations_only() -> None:
    cut = APART.first_steps(2)
    assert cut.sizes == (64, 64)
    assert [one.step for one in cut.strips] == [0, 1]
    assert PARTLY.first_steps(1).sizes == (64,)


def test_every_step_is_on_its_own_line_at_its_bytes() -> None:
    places = re.findall(r"M([\d.]+) ([\d.]+)h", storage_svg(APART, "independent"))
    assert len({y for _, y in places}) == 3
    assert len({x for x, _ in places}) == 3
    together = re.findall(r"M([\d.]+) ([\d.]+)h", storage_svg(SHARED, "shared"))
    assert len({x for x, _ in together}) == 2


def test_names_are_escaped() -> None:
    svg = storage_svg(SHARED, 'a "quoted" <path>')
    assert "<b>" not in svg
    assert "&lt;b&gt;" in svg
    assert "<path>" not in svg
    assert element("text", label(0, 0, "&"), class_="a").count("&amp;") == 1
    assert boxes((), "own") == ""


TIMELINE = Timeline(
    moments=(
        Moment("refresh", "b4.00", 4, replayed=True, note="opening"),
        Moment("refresh", "b4.01", 4, replayed=False, note="not replayed: poison"),
        Moment("refresh", "b4.02", 4, replayed=True),
    ),
    leaves=(
        Track("lengths", (0, 1, 2), (1, 1, 1), (1, 1, 1)),
        Track("schedule", (0,), (1, 0, 12), (1, 1, 1)),
        Track("table", (0,), (2, 2, 2), (2, 2, 2)),
    ),
    spans=(Track("precompute", (), (1, 1, 1)),),
)


def test_a_ledger_that_is_not_as_declared_stands_out() -> None:
    assert summary(TIMELINE) == "3 refreshes, 2 replays, 28 writes into leaves; 2 places not as declared"
    svg = timeline_svg(TIMELINE)
    assert classes(svg).count("odd") == 1
    texts = [(text.get("class"), text.text) for text in ElementTree.fromstring(svg).iter("text")]
    assert ("in", "0+") in texts
    assert ("in", "222") in texts
    assert ("dot", "●●") in texts


def test_equal_neighbours_are_one_box_and_a_right_ledger_has_no_red() -> None:
    right = Timeline(TIMELINE.moments, TIMELINE.leaves[:1], ())
    svg = timeline_svg(right)
    assert "odd" not in svg
    assert summary(right).endswith("; all as declared")
    (path,) = [one for one in ElementTree.fromstring(svg).iter("path") if one.get("class") == "once"]
    assert path.get("d", "").count("M") == 1
    assert "lengths · steps 0-2" in svg


def test_heads_say_what_a_round_is_for() -> None:
    svg = moments_svg(TIMELINE)
    assert "refresh b4.01, bucket 4: not replayed: poison" in svg


def test_words() -> None:
    assert [of_bytes(number) for number in (0, 999, 1000, 32768, 1 << 20)] == [
        "0 B", "999 B", "0.977 KiB", "32 KiB", "1 MiB",
    ]  # fmt: skip
    assert [steps(numbers) for numbers in ((), (1,), (0, 1), (0, 1, 2), (0, 2, 3))] == [
        "", "step 1", "steps 0, 1", "steps 0-2", "steps 0, 2, 3",
    ]  # fmt: skip
