from xml.etree import ElementTree

import pytest

SELECTED = ("--harness-model", "tiny", "--harness-path", "shared", "-k", "decode and bs4 and plain")


@pytest.mark.parametrize("workers", [(), ("-n", "1")])
def test_every_case_is_a_testcase_with_a_property_per_check(
    tiny_project: pytest.Pytester, workers: tuple[str, ...]
) -> None:
    tiny_project.runpytest_subprocess(*SELECTED, "--junitxml=out.xml", *workers)
    cases = {
        case.get("name", ""): {one.get("name"): one.get("value", "") for one in case.iter("property")}
        for case in ElementTree.parse(tiny_project.path / "out.xml").iter("testcase")
    }
    with_case = [properties for properties in cases.values() if properties]
    assert with_case
    for properties in with_case:
        assert properties["axis.model"] == "tiny"
        assert properties["axis.path"] == "shared"
        assert properties["check.aliasing"] == "passed"
        # no golden was accepted in this project
        assert properties["check.golden"].startswith("failed, ")
        assert properties["verdict"] == "failed"
        assert int(properties["replays"] or 0) > 0


def test_a_test_without_a_case_has_none(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_passes(): pass")
    pytester.runpytest("--junitxml=out.xml")
    assert not list(ElementTree.parse(pytester.path / "out.xml").iter("property"))
