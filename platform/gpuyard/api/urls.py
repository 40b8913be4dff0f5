"""`/api/v1/`: each app brings its own routes. No trailing slashes."""

from django.urls import URLPattern, URLResolver, path, re_path
from drf_spectacular.views import SpectacularJSONAPIView

from billing.api import CostsCsvView, CostsView
from gpuyard.api.cases import CaseDecisionView, CasesView, CaseView, CaseWithdrawView
from gpuyard.api.views import NothingView, RootView
from gpuyard.api.workloads import WorkloadsView, WorkloadView
from scheduling.api.workloads import QueueView, WorkloadEventsView, WorkloadLogView, WorkloadStopView

urlpatterns: list[URLPattern | URLResolver] = [
    path("", RootView.as_view(), name="api-root"),
    path("schema", SpectacularJSONAPIView.as_view(), name="api-schema"),
    path("workloads", WorkloadsView.as_view(), name="api-workloads"),
    path("workloads/<str:public_id>", WorkloadView.as_view(), name="api-workload"),
    path("workloads/<str:public_id>/stop", WorkloadStopView.as_view(), name="api-workload-stop"),
    path("workloads/<str:public_id>/log", WorkloadLogView.as_view(), name="api-workload-log"),
    path("workloads/<str:public_id>/events", WorkloadEventsView.as_view(), name="api-workload-events"),
    path("queue", QueueView.as_view(), name="api-queue"),
    path("cases", CasesView.as_view(), name="api-cases"),
    path("cases/<str:public_id>", CaseView.as_view(), name="api-case"),
    path("cases/<str:public_id>/decision", CaseDecisionView.as_view(), name="api-case-decision"),
    path("cases/<str:public_id>/withdraw", CaseWithdrawView.as_view(), name="api-case-withdraw"),
    path("costs", CostsView.as_view(), name="api-costs"),
    path("costs.csv", CostsCsvView.as_view(), name="api-costs-csv"),
    # the last one: everything that no route above takes
    re_path(r"^.*$", NothingView.as_view(), name="api-nothing"),
]
