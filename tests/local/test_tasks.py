"""The tasks that the settings name exist, and a missing broker costs a request a second at most."""

import socket
import time

import pytest
from celery import Celery
from django.conf import settings
from kombu.exceptions import OperationalError

from gpuyard.celery import app


def test_every_scheduled_and_routed_task_exists() -> None:
    app.loader.import_default_modules()
    named = {entry["task"] for entry in settings.CELERY_BEAT_SCHEDULE.values()} | set(
        settings.CELERY_TASK_ROUTES
    )
    assert named - set(app.tasks) == set()


def test_every_scheduled_task_expires() -> None:
    assert all(entry["options"]["expires"] > 0 for entry in settings.CELERY_BEAT_SCHEDULE.values())


@pytest.mark.parametrize("answers", [False, True], ids=["nobody-listens", "never-answers"])
def test_publishing_without_a_broker_is_bounded(answers: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1] if answers else 1
        publisher = Celery("publisher", set_as_current=False)
        publisher.config_from_object("django.conf:settings", namespace="CELERY")
        publisher.conf.broker_url = f"redis://:password@127.0.0.1:{port}/0"
        started = time.monotonic()
        with pytest.raises(OperationalError):
            publisher.send_task("scheduling.tasks.pass_run")
    assert time.monotonic() - started < 3
