import pytest

from harness.sut.patches import Patches


class Base:
    inherited = "base"


class Owner(Base):
    own = "owner"


def test_attributes_come_back_and_shadows_are_deleted() -> None:
    before = dict(vars(Owner))
    with Patches() as patches:
        patches.attribute(Owner, "own", 1)
        patches.attribute(Owner, "own", 2)
        patches.attribute(Owner, "inherited", 3)
        patches.attribute(Owner, "new", 4)
        assert (Owner.own, Owner.inherited, Owner.new) == (2, 3, 4)  # type: ignore[comparison-overlap,attr-defined]
    assert dict(vars(Owner)) == before
    assert Owner.inherited == "base"


def test_items_come_back() -> None:
    mapping = {"kept": 1}
    with Patches() as patches:
        patches.item(mapping, "kept", 2)
        patches.item(mapping, "new", 3)
        assert mapping == {"kept": 2, "new": 3}
    assert mapping == {"kept": 1}


def test_everything_is_undone_when_the_block_raises() -> None:
    undone: list[str] = []

    def raising() -> None:
        with Patches() as patches:
            patches.attribute(Owner, "own", 1)
            patches.callback(lambda: undone.append("called"))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        raising()
    assert Owner.own == "owner"
    assert undone == ["called"]
