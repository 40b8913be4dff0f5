"""Settings for pytest: tests/plugin.py has started the servers and set the environment by now."""

import os

os.environ.setdefault("GPUYARD_SECRET_KEY", "tests-only-not-a-secret-0123456789abcdef")
os.environ.setdefault("GPUYARD_AUDIT_KEY", "dGVzdHMtb25seS1ub3QtYS1zZWNyZXQtMDEyMzQ1Njc")

from gpuyard.settings.base import *  # noqa: F403

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # argon2 is slow on purpose
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.InMemoryStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}
GPUYARD_API_RATE = 0  # the tests of the limit set one
EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
LOGGING = {"version": 1, "disable_existing_loggers": False}
