"""Settings for production: nothing is guessed, a missing variable stops the start."""

from gpuyard.settings import env
from gpuyard.settings.base import *  # noqa: F403
from gpuyard.settings.base import REPO_DIR

SECRET_KEY = env.text("GPUYARD_SECRET_KEY")
AUDIT_SIGNING_KEY = env.signing_key("GPUYARD_AUDIT_KEY")
DATABASE_URL = env.text("DATABASE_URL")
REDIS_URL = env.redis("REDIS_URL", env.text("REDIS_URL"))
ALLOWED_HOSTS = env.words("GPUYARD_ALLOWED_HOSTS") or [env.text("GPUYARD_ALLOWED_HOSTS")]
DEBUG = False

WHITENOISE_USE_FINDERS = False
STATIC_ROOT = env.text("GPUYARD_STATIC_ROOT", str(REPO_DIR / "staticfiles"))
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "whitenoise.storage.CompressedManifestStaticFilesStorage"},
}

# Behind a TLS proxy that sets X-Forwarded-Proto. GPUYARD_TLS=0 is for a closed network without TLS.
_tls = env.flag("GPUYARD_TLS", True)
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
SECURE_SSL_REDIRECT = _tls
SESSION_COOKIE_SECURE = _tls
CSRF_COOKIE_SECURE = _tls
SECURE_HSTS_SECONDS = 31536000 if _tls else 0
SECURE_REDIRECT_EXEMPT = [r"^healthz$"]
