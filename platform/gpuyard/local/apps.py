from django.apps import AppConfig


class LocalConfig(AppConfig):
    name = "gpuyard.local"
    label = "local"

    def ready(self) -> None:
        # Makes our Celery application everybody's default: without it, a web process would publish its tasks
        # to a broker on localhost that nobody configured.
        import gpuyard.celery  # noqa: F401
