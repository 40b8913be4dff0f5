"""The Celery application: `celery -A gpuyard.celery worker -Q pass`."""

import os
from typing import Any

from celery import Celery
from celery.signals import worker_init

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpuyard.settings.base")

app = Celery("gpuyard")
app.set_default()  # for all threads; being current is for the thread that imports this only
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@worker_init.connect
def _require_hooks(**kwargs: Any) -> None:
    # The worker runs Django's checks but does not act on what they find.
    from gpuyard.core.hooks import hooks_require

    hooks_require()
