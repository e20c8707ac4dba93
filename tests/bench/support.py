"""A meter without a device, and reports made by hand."""

from __future__ import annotations

from harness.bench.figures import FLOOR, NOTHING, ONE, Figures, Measured, Report, Spread
from harness.bench.meter import Activities, Call
from harness.bench.settings import Effort, Point


class FakeMeter:
    """Makes every call and says what it was told to say; keeps what was asked for, in order."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.allocated = 0

    def host(self, call: Call) -> float:
        self.asked.append("host")
        call()
        return float(len(self.asked))

    def span(self, call: Call, host_us: float = 0.0) -> float:
        self.asked.append("span")
        call()
        return 3.0

    def gap(self, call: Call, following: Call | None = None) -> float:
        self.asked.append("gap")
        call()
        if following is not None:
            following()
        return 4.0

    def activities(self, call: Call) -> Activities:
        call()
        return Activities(kernels=1, memcpys=2)

    def temporary(self, call: Call) -> int:
        call()
        return self.allocated

    def synchronize(self) -> None:
        pass

    def capture(self, call: Call) -> Call:
        return call

    def launch_one(self) -> None:
        pass


def point(steps: int = 5, bucket: int = 4, width: int = 131072) -> Point:
    return Point("tiny", 4, True, steps, bucket, width)


def figures(system: str, path: str, median: float, owned: int = 0, wrong: tuple[str, ...] = ()) -> Figures:
    spread = Spread(median, median - 1, median + 1, 10)
    one = Activities(1, 2, 0)
    return Figures(system, path, spread, spread, spread, one, one, owned, owned, 0, wrong)


def measured(at: Point | None = None, scale: float = 1.0) -> Measured:
    chosen = at or point()
    return Measured(
        chosen,
        chosen.lengths(),
        (figures(FLOOR, NOTHING, 2.0), figures(FLOOR, ONE, 10.0)),
        (
            figures("embedded", "independent", 100.0 * scale, 4000, ("topk_v2_plan",)),
            figures("embedded-fused", "shared", 20.0, 1000),
            figures("sglang", "released", 200.0 * scale, 8000),
        ),
    )


def report(*points: Measured) -> Report:
    return Report(
        "replay-harness bench gpu", "2026-11-29", {"name": "a device"}, {"torch": "2"}, Effort(), points
    )
