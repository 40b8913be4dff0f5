import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpuyard.settings.base")

application = get_wsgi_application()

from gpuyard.core.hooks import hooks_require  # noqa: E402 - Django stands by now

hooks_require()
