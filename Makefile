# make demo   sets everything up from nothing and runs the main job; PORT=8001, ONCE=1, RESET=1
# make up     runs the platform alone
# make test   the gate          make proof   what takes longer
PORT ?= 8000
ONCE ?=
RESET ?=
PYTEST_ARGS ?= -n 3
BIN := .venv/bin
EXPORT := uv export --frozen --quiet --no-header --no-emit-workspace --all-packages --extra local

.PHONY: demo up setup setup-dev lint types imports migrations requirements requirements-check test pytest proof format

demo: setup
	@exec $(BIN)/python manage.py demo --port $(PORT) $(if $(ONCE),--once) $(if $(RESET),--reset)

up: setup
	@exec $(BIN)/python manage.py up --port $(PORT) $(if $(RESET),--reset)

setup:
	@./bootstrap

setup-dev:
	@./bootstrap dev

lint: setup-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: setup-dev
	$(BIN)/mypy

imports: setup-dev
	$(BIN)/lint-imports

migrations: setup-dev
	$(BIN)/python manage.py makemigrations --check --dry-run

# The gate. Cheap checks first.
test: lint imports types migrations requirements-check pytest

pytest: setup-dev
	$(BIN)/python -m pytest -m "not proof" $(PYTEST_ARGS)

proof: setup-dev
	$(BIN)/python -m pytest -m proof
	@for bench in benchmarks/[a-z]*.py; do echo "$$bench"; $(BIN)/python "$$bench" || exit 1; done

format: setup-dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# After a change of dependencies: uv lock && make requirements
requirements:
	$(EXPORT) --no-dev -o requirements.txt
	$(EXPORT) -o requirements-dev.txt

# Whoever has no uv installs from the exported files: they must say what the lock says.
requirements-check:
	@if command -v uv >/dev/null 2>&1; then \
		uv lock --check --quiet && \
		$(EXPORT) --no-dev | diff -u requirements.txt - && $(EXPORT) | diff -u requirements-dev.txt - \
		|| { echo "uv.lock or requirements differ from pyproject.toml: run uv lock && make requirements" >&2; exit 1; }; \
	else echo "no uv here: requirements not compared with uv.lock"; fi
