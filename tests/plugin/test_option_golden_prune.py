import shutil

import pytest

from harness import locate


@pytest.fixture
def orphan(tiny_project: pytest.Pytester) -> pytest.Pytester:
    golden = tiny_project.mkdir("golden")
    for suffix in ("manifest.json", "safetensors"):
        for name in ("tiny.tape", "glm-5.tape"):
            shutil.copy(locate.CHECKOUT / "golden" / f"{name}.{suffix}", golden)
    tiny_project.makepyfile(test_matrix="def test_passes(): pass")
    return tiny_project


def names(project: pytest.Pytester) -> set[str]:
    return {path.name.split(".tape")[0] for path in (project.path / "golden").iterdir()}


def test_goldens_without_a_model_are_removed(orphan: pytest.Pytester) -> None:
    result = orphan.runpytest_subprocess("--golden-prune")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["replay harness: *, golden prune", "removed: glm-5.tape"])
    assert names(orphan) == {"tiny"}


def test_without_it_they_stay(orphan: pytest.Pytester) -> None:
    orphan.runpytest_subprocess()
    assert names(orphan) == {"tiny", "glm-5"}


def test_it_is_refused_in_ci(orphan: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    result = orphan.runpytest_subprocess("--golden-prune")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --golden-prune: refused in CI*"])
    assert names(orphan) == {"tiny", "glm-5"}
