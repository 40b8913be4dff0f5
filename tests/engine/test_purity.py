import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_engine_loads_no_django_in_a_fresh_process() -> None:
    code = (
        "import sys, scheduling.engine.plan, scheduling.engine.explain;"
        "print([m for m in ('django', 'psycopg', 'celery', 'gpuyard') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


def test_the_plan_is_the_same_under_any_hash_seed() -> None:
    """Sets of strings iterate differently in each process: no decision may hang on that."""
    code = (
        "from scheduling.engine.plan import plan_to_json;"
        "from tests.engine.build import decide;"
        "from tests.engine.test_blockers import everything_wrong;"
        "print(plan_to_json(decide(everything_wrong())))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(outputs) == 1
