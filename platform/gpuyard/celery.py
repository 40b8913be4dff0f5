"""The Celery application: `celery -A gpuyard.celery worker -Q pass`."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpuyard.settings.base")

app = Celery("gpuyard")
app.set_default()  # for all threads; being current is for the thread that imports this only
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
