"""The pages. Names in addresses are ids, the team is `?team=`; no trailing slashes."""

from django.contrib.auth.views import LoginView, LogoutView
from django.urls import path

from gpuyard.web.views import (
    approvals,
    audit,
    costs,
    fleet,
    home,
    nodes,
    passes,
    policy,
    queue,
    request,
    search,
    workloads,
)

app_name = "web"
urlpatterns = [
    path("", home.home, name="home"),
    path(
        "sign-in",
        LoginView.as_view(template_name="sign_in.html", redirect_authenticated_user=True),
        name="sign_in",
    ),
    path("sign-out", LogoutView.as_view(), name="sign_out"),
    path("search", search.search, name="search"),
    path("workloads", workloads.workloads, name="workloads"),
    path("workloads.csv", workloads.workloads_csv, name="workloads_csv"),
    path("workloads/new", request.request_new, name="request"),
    path("workloads/<str:public_id>", workloads.workload, name="workload"),
    path("workloads/<str:public_id>/log", workloads.workload_log, name="workload_log"),
    path("workloads/<str:public_id>/stop", workloads.workload_stop, name="workload_stop"),
    path("approvals", approvals.approvals, name="approvals"),
    path("approvals/<str:public_id>/decide", approvals.case_decide, name="case_decide"),
    path("queue", queue.queue, name="queue"),
    path("queue.csv", queue.queue_csv, name="queue_csv"),
    path("passes", passes.passes, name="passes"),
    path("passes.csv", passes.passes_csv, name="passes_csv"),
    path("passes/<int:number>", passes.one, name="pass"),
    path("passes/<int:number>/replay", passes.replay, name="pass_replay"),
    path("fleet", fleet.fleet, name="fleet"),
    path("fleet/nodes/<str:public_id>", nodes.node, name="node"),
    path("fleet/nodes/<str:public_id>/place", nodes.node_place, name="node_place"),
    path("fleet.csv", fleet.fleet_csv, name="fleet_csv"),
    path("policy", policy.policy, name="policy"),
    path("policy/apply", policy.policy_apply, name="policy_apply"),
    path("policy/restore", policy.policy_restore, name="policy_restore"),
    path("policy/bands", policy.policy_band_grant, name="policy_band_grant"),
    path("policy/bands/<uuid:grant_id>/revoke", policy.policy_band_revoke, name="policy_band_revoke"),
    path("fleet/free", fleet.free_space, name="free_space"),
    path("fleet/free.csv", fleet.free_space_csv, name="free_space_csv"),
    path("costs", costs.costs, name="costs"),
    path("costs.csv", costs.costs_csv, name="costs_csv"),
    path("audit", audit.audit, name="audit"),
    path("audit.csv", audit.audit_csv, name="audit_csv"),
    path("audit.jsonl", audit.audit_jsonl, name="audit_jsonl"),
    path("audit/checkpoints.jsonl", audit.audit_checkpoints, name="audit_checkpoints"),
    path("audit/public-key.pem", audit.audit_public_key, name="audit_public_key"),
]
