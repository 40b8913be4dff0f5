"""Arrangements that no type checker or linter holds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
IMPORT_ROOT = ROOT / "platform"


def _run(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "DJANGO_SETTINGS_MODULE"}}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(IMPORT_ROOT)])
    argv = [sys.executable, "-c", code]
    return subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_platform_is_no_package() -> None:
    # An __init__.py there would shadow the standard library's `platform` for every program that starts here.
    assert list(IMPORT_ROOT.glob("*.py")) == []


def test_nothing_below_platform_is_named_like_the_standard_library() -> None:
    names = {path.stem for path in IMPORT_ROOT.iterdir() if path.name != "__pycache__"}
    assert names & sys.stdlib_module_names == set()


@pytest.mark.parametrize("folder", [ROOT, IMPORT_ROOT, ROOT / "tests"], ids=["root", "platform", "tests"])
def test_import_platform_is_the_standard_librarys(folder: Path) -> None:
    answer = _run("import platform; print(platform.__file__); platform.system()", folder)
    assert answer.returncode == 0, answer.stderr
    assert Path(answer.stdout.strip()).name == "platform.py"
    assert ROOT not in Path(answer.stdout.strip()).parents or ".venv" in answer.stdout


def test_the_engine_loads_no_django() -> None:
    modules = sorted(
        f"scheduling.engine.{path.stem}"
        for path in (ROOT / "scheduling" / "engine").glob("*.py")
        if path.stem != "__init__"
    )
    imports = "; ".join(f"import {name}" for name in ["scheduling.engine", *modules])
    answer = _run(f"{imports}; import sys; print(sorted({{m.split('.')[0] for m in sys.modules}}))", ROOT)
    assert answer.returncode == 0, answer.stderr
    for unwanted in ("django", "gpuyard", "psycopg", "celery", "httpx"):
        assert f"'{unwanted}'" not in answer.stdout


def test_the_agent_loads_no_django() -> None:
    answer = _run("import gpuyard_agent.cli, sys; print('django' in sys.modules)", ROOT)
    assert (answer.stdout.strip(), answer.stderr) == ("False", "")


def test_every_source_folder_is_in_the_wheel() -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "*/apps.py"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if tracked.returncode != 0:
        pytest.skip("not a git checkout")
    shipped = ("platform/gpuyard/", "scheduling/", "tenants/", "billing/")
    assert [path for path in tracked.stdout.split() if not path.startswith(shipped)] == []
