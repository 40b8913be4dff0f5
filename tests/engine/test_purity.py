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
