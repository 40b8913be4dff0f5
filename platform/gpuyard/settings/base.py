"""Settings for one machine; production.py tightens them. Works in a checkout and in a wheel."""

from pathlib import Path
from typing import Any

from gpuyard.local.state import audit_key, running_environment, secret_key
from gpuyard.settings import env

PACKAGE_DIR = Path(__file__).resolve().parents[1]
REPO_DIR = PACKAGE_DIR.parents[1]  # unused when installed from a wheel

# Where nothing is configured and no local instance runs, commands that need no database still work:
# port 1 refuses at once, so one that does need it says so instead of hanging.
_NOWHERE = "postgresql://nobody@127.0.0.1:1/gpuyard"
_local = running_environment()


def _setting(name: str, default: str) -> str:
    return env.text(name, _local.get(name) or default)


# --- What runs ---------------------------------------------------------------------------------------
DEBUG = env.flag("GPUYARD_DEBUG", False)
SECRET_KEY = secret_key()
AUDIT_SIGNING_KEY = env.signing_key("GPUYARD_AUDIT_KEY", audit_key())  # of the log's checkpoints
# Not "*": a web page elsewhere could let its own name point here and then speak as if it were ours.
ALLOWED_HOSTS = env.words("GPUYARD_ALLOWED_HOSTS", "localhost,127.0.0.1,[::1]")
# Proxies whose word about the caller's address (X-Forwarded-For) is believed.
GPUYARD_TRUSTED_PROXIES = env.networks("GPUYARD_TRUSTED_PROXIES")
CSRF_TRUSTED_ORIGINS = env.words("GPUYARD_TRUSTED_ORIGINS")
ROOT_URLCONF = "gpuyard.urls"
WSGI_APPLICATION = "gpuyard.wsgi.application"

INSTALLED_APPS = [
    "gpuyard.core",
    "gpuyard.audit",
    "gpuyard.notify",
    "gpuyard.fleet",
    "tenants",
    "scheduling",
    "billing",
    "gpuyard.local",
    "gpuyard.api",
    "gpuyard.web",
    "gpuyard.demo",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.humanize",
    "django.contrib.postgres",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "django_filters",
    "django_htmx",
    "template_partials",
    "django_celery_beat",
    "csp",
    "allauth",
    "allauth.account",
    "allauth.mfa",
    "allauth.socialaccount",
    "allauth.socialaccount.providers.openid_connect",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "gpuyard.audit.doors.door_middleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "csp.middleware.CSPMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "gpuyard.api.attempts.attempts_middleware",
    "gpuyard.api.throttling.rate_middleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [d for d in (PACKAGE_DIR / "templates", REPO_DIR / "templates") if d.is_dir()],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "gpuyard.web.shell.shell",
            ],
        },
    },
]

# --- Databases ---------------------------------------------------------------------------------------
# `default` is the app role, which owns nothing; `owner` migrates. See gpuyard.local for the embedded ones.
_app_url = _setting("DATABASE_URL", _NOWHERE)
DATABASES: dict[str, dict[str, Any]] = {
    "default": env.database("DATABASE_URL", _app_url),
    "owner": env.database("MIGRATE_DATABASE_URL", _setting("MIGRATE_DATABASE_URL", _app_url)),
}
for _database in DATABASES.values():
    _database["ATOMIC_REQUESTS"] = False
    _database["CONN_MAX_AGE"] = 0
    _database["OPTIONS"].setdefault("connect_timeout", 5)
    _database["OPTIONS"].setdefault("application_name", "gpuyard")
# Only the threaded web server pools: a new connection per request costs it most of its speed.
# OPTIONS is added to, never replaced: a socket's host lives in there.
if _pool_size := env.integer("GPUYARD_DB_POOL", 0):
    DATABASES["default"]["OPTIONS"].setdefault("pool", {"min_size": 1, "max_size": _pool_size, "timeout": 10})
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
APP_DB_ROLE: str = DATABASES["default"]["USER"]
OWNER_DB_ROLE: str = DATABASES["owner"]["USER"]

# --- Redis: broker 0, cache 1 ---------------------------------------------------------------------------
REDIS_URL = env.redis("REDIS_URL", _setting("REDIS_URL", "redis://127.0.0.1:1"))
CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": f"{REDIS_URL}/1",
        "OPTIONS": {"socket_connect_timeout": 1, "socket_timeout": 1},
    }
}

# --- People --------------------------------------------------------------------------------------------
AUTH_USER_MODEL = "core.User"
LOGIN_URL = "/sign-in"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "/sign-in"
PASSWORD_HASHERS = [
    "django.contrib.auth.hashers.Argon2PasswordHasher",
    "django.contrib.auth.hashers.PBKDF2PasswordHasher",
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "django.contrib.auth.password_validation.NumericPasswordValidator"},
]
# Signing in is allauth's, with our pages and addresses (gpuyard.web.identity). Its own limits count in the cache,
# whose absence would keep everybody out: ours are in the database (tenants.lockout).
ACCOUNT_ADAPTER = "gpuyard.web.identity.adapters.AccountAdapter"
ACCOUNT_LOGIN_METHODS = {"username"}
ACCOUNT_SIGNUP_FIELDS = ["username*", "password1*"]
ACCOUNT_EMAIL_VERIFICATION = "none"
ACCOUNT_UNIQUE_EMAIL = False
ACCOUNT_SESSION_REMEMBER = True
ACCOUNT_RATE_LIMITS = False
ACCOUNT_LOGOUT_REDIRECT_URL = LOGOUT_REDIRECT_URL
ACCOUNT_REAUTHENTICATION_REQUIRED = True
MFA_ADAPTER = "gpuyard.web.identity.adapters.MfaAdapter"
MFA_FORMS = {
    "authenticate": "gpuyard.web.identity.forms.CodeForm",
    "reauthenticate": "gpuyard.web.identity.forms.CodeAgainForm",
}
MFA_SUPPORTED_TYPES = ["totp", "recovery_codes"]
MFA_RECOVERY_CODES_SHOW_ONCE = True
MFA_TOTP_ISSUER = "GPU Yard"
GPUYARD_ADMINS_NEED_CODES = env.flag("GPUYARD_ADMINS_NEED_CODES", False)
# Browsers share cookies between the ports of a host: two checkouts side by side must not sign each other out.
_cookie_suffix = env.text("GPUYARD_COOKIE_SUFFIX", "")
SESSION_COOKIE_NAME = f"gpuyard_session{_cookie_suffix}"
CSRF_COOKIE_NAME = f"gpuyard_csrf{_cookie_suffix}"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
CSRF_COOKIE_SAMESITE = "Lax"

# --- What a browser may load ---------------------------------------------------------------------------
X_FRAME_OPTIONS = "DENY"
SECURE_REFERRER_POLICY = "same-origin"
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": ["'none'"],
        "script-src": ["'self'"],
        "style-src": ["'self'"],
        "font-src": ["'self'"],
        "img-src": ["'self'", "data:"],
        "connect-src": ["'self'"],
        "form-action": ["'self'"],
        "base-uri": ["'none'"],
        "frame-ancestors": ["'none'"],
    }
}

# --- Words, time, files --------------------------------------------------------------------------------
LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English")]
USE_I18N = True
USE_TZ = True
TIME_ZONE = "UTC"
STATIC_URL = "/static/"
STATICFILES_DIRS = [d for d in (PACKAGE_DIR / "static", REPO_DIR / "static") if d.is_dir()]
# On one machine files are served from where they lie; production.py collects, hashes and compresses them.
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = DEBUG
DATA_UPLOAD_MAX_MEMORY_SIZE = 8 * 1024 * 1024  # an agent's sync carries log text
DATA_UPLOAD_MAX_NUMBER_FIELDS = 2000

# --- REST ------------------------------------------------------------------------------------------------
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "gpuyard.api.authentication.TokenAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": [
        "rest_framework.permissions.IsAuthenticated",
        "gpuyard.api.permissions.TokenScope",
    ],
    "DEFAULT_THROTTLE_CLASSES": ["gpuyard.api.throttling.CallerThrottle"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["gpuyard.core.parsers.BoundedJSONParser"],
    "DEFAULT_FILTER_BACKENDS": ["django_filters.rest_framework.DjangoFilterBackend"],
    "DEFAULT_PAGINATION_CLASS": "gpuyard.core.pagination.CursorPages",
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "gpuyard.core.problems.exception_handler",
    "PAGE_SIZE": 50,
    "COERCE_DECIMAL_TO_STRING": True,
    "TEST_REQUEST_DEFAULT_FORMAT": "json",
}
GPUYARD_API_RATE = env.integer("GPUYARD_API_RATE", 1200)  # requests a minute and token; 0: no limit
SPECTACULAR_SETTINGS = {
    "TITLE": "GPU Yard",
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "gpuyard.api.schema.problems_add",
    ],
    "COMPONENT_SPLIT_REQUEST": True,
    "ENUM_NAME_OVERRIDES": {
        "AttemptState": "scheduling.states.AttemptState",
        "CaseState": "tenants.models.CaseState",
        "Condition": "gpuyard.fleet.models.Condition",
        "EventSource": "gpuyard.audit.models.Source",
        "DeliveryState": "gpuyard.notify.models.MessageState",
        "MailPace": "gpuyard.notify.models.Pace",
        "NodeState": "gpuyard.fleet.models.NodeState",
        "QuotaAskState": "tenants.models.AskState",
        "ReplicaState": "scheduling.states.ReplicaState",
        "Role": "tenants.models.Role",
        "StepState": "tenants.models.StepState",
        "TokenScope": "tenants.scopes.TOKEN_SCOPES",
        "WebhookKind": "gpuyard.notify.models.EndpointKind",
        "WorkloadKind": "scheduling.models.Kind",
        "WorkloadState": "scheduling.states.WorkloadState",
    },
}

# --- Money -------------------------------------------------------------------------------------------------
GPUYARD_CURRENCY = env.text("GPUYARD_CURRENCY", "EUR")  # of cost rates; a company pays in its own

# --- Telling people ------------------------------------------------------------------------------------------
GPUYARD_URL = env.text("GPUYARD_URL", "http://127.0.0.1:8000").rstrip("/")  # as people reach us: for links
# Networks that webhooks may reach besides the public internet, and over plain http.
GPUYARD_WEBHOOK_NETWORKS = env.networks("GPUYARD_WEBHOOK_NETWORKS")
# Without a mail server, mails are lines in the worker's output.
EMAIL_HOST = env.text("GPUYARD_SMTP_HOST", "")
_mail = "smtp" if EMAIL_HOST else "console"
EMAIL_BACKEND = f"django.core.mail.backends.{_mail}.EmailBackend"
EMAIL_PORT = env.integer("GPUYARD_SMTP_PORT", 587, at_least=1)
EMAIL_HOST_USER = env.text("GPUYARD_SMTP_USER", "")
EMAIL_HOST_PASSWORD = env.text("GPUYARD_SMTP_PASSWORD", "")
_smtp_tls = env.one_of("GPUYARD_SMTP_TLS", ("starttls", "tls", "none"))
EMAIL_USE_TLS = _smtp_tls == "starttls"
EMAIL_USE_SSL = _smtp_tls == "tls"
EMAIL_TIMEOUT = 10
DEFAULT_FROM_EMAIL = env.text("GPUYARD_EMAIL_FROM", "GPU Yard <gpuyard@localhost>")

# --- Tasks -------------------------------------------------------------------------------------------------
CELERY_BROKER_URL = f"{REDIS_URL}/0"
# No result backend: what a task did is in the database, and with Redis down the backend's own retries would
# hold a request for 20 s.
CELERY_RESULT_BACKEND = None
CELERY_TASK_DEFAULT_QUEUE = "default"
# The pass has a queue of its own, so that no other work delays it.
CELERY_TASK_ROUTES = {
    "scheduling.tasks.pass_run": {"queue": "pass"},
    "billing.tasks.books_verify": {"queue": "long"},
    "gpuyard.audit.tasks.audit_verify": {"queue": "long"},
}
CELERY_TASK_IGNORE_RESULT = True
CELERY_RESULT_EXPIRES = None  # or beat schedules a clean-up of results that there are none of
CELERY_TASK_ACKS_LATE = True  # every task is safe to run twice; a killed worker's task comes back
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS = True
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
# Publishing is bounded to about a second and never repeated: the next pass finds the rows.
CELERY_TASK_PUBLISH_RETRY = False
CELERY_BROKER_CONNECTION_TIMEOUT = 1
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "visibility_timeout": 6 * 3600,  # longer than the longest task, or it would be handed out twice
    "socket_connect_timeout": 1,
    "socket_timeout": 1,
    "max_retries": 0,
}
CELERY_TIMEZONE = "UTC"
CELERY_BEAT_SCHEDULER = "django_celery_beat.schedulers:DatabaseScheduler"
CELERY_BEAT_MAX_LOOP_INTERVAL = 1


def _every(task: str, seconds: int) -> dict[str, Any]:
    # `expires`: turns missed while no worker ran are dropped, they do not pile up.
    return {"task": task, "schedule": seconds, "options": {"expires": max(seconds, 2)}}


CELERY_BEAT_SCHEDULE = {
    "pass": _every("scheduling.tasks.pass_run", 2),
    "nodes-check": _every("scheduling.tasks.nodes_check", 10),
    "audit-seal": _every("gpuyard.audit.tasks.audit_seal", 5),
    "audit-checkpoint": _every("gpuyard.audit.tasks.audit_checkpoint", 3600),
    "audit-verify": _every("gpuyard.audit.tasks.audit_verify", 6 * 3600),
    "notify": _every("gpuyard.notify.tasks.deliver", 5),
    "notify-purge": _every("gpuyard.notify.tasks.purge", 24 * 3600),
    "meter": _every("billing.tasks.meter", 30),
    "cases-due": _every("tenants.tasks.cases_due", 60),
    "guesses-forget": _every("tenants.tasks.guesses_forget", 3600),
    "grants-due": _every("tenants.tasks.grants_due", 300),
    "books-verify": _every("billing.tasks.books_verify", 3600),
    "keys-purge": _every("gpuyard.core.tasks.idempotency_purge_old", 3600),
}

# --- Logging -----------------------------------------------------------------------------------------------
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "{asctime} {levelname} {name}: {message}", "style": "{"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["console"], "level": env.text("GPUYARD_LOG_LEVEL", "INFO")},
    "loggers": {
        "django.server": {"level": "WARNING"},
        "httpx": {"level": "WARNING"},
        "celery.beat": {"level": "WARNING"},
        "celery.app.trace": {"level": "WARNING"},
        "celery.worker.strategy": {"level": "WARNING"},
    },
}
