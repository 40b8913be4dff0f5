"""What people type, turned into what the services take. The rules are the spec's own: one wording for all doors."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from django import forms
from django.core.validators import MaxLengthValidator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from gpuyard.core.errors import FieldError, Invalid
from gpuyard.fleet.architectures import ARCHITECTURES
from gpuyard.fleet.selectors import fabric_levels
from gpuyard.web.form_parts import (
    Unreadable,
    mebibytes,
    memory_text,
    parts_initial,
    request_parts,
    whole,
)
from gpuyard.web.wording import duration_exact, parse_duration
from scheduling.asked import number
from scheduling.models import Kind
from scheduling.policy_models import HIGHEST_BAND
from scheduling.specs import Spec, spec_parse

LONGEST = 64 * 1024
# Not whatever Decimal takes: 1e999990 is a number whose digits take a server's thread for minutes.
CORES = re.compile(r"-?[0-9]{1,9}(?:\.[0-9]{0,9})?|\.[0-9]{1,9}")

# Where a wrong field of the spec stands on the form.
UNASKED = frozenset({"name", "command", "reason"})  # neither start nor cost depends on these
FIELDS = {
    "spec.command": "command",
    "spec.env": "env",
    "spec.working_dir": "working_dir",
    "spec.checkpoint_dir": "checkpoint_dir",
    "spec.time_limit_s": "time_limit",
    "spec.ports": "ports",
    "spec.image": "image",
    "spec.request.gpus_per_replica": "gpus_per_replica",
    "spec.request.replicas_min": "replicas",
    "spec.request.replicas_max": "replicas_most",
    "spec.request.elastic": "elastic",
    "spec.request.share": "part",
    "spec.request.gpu_memory_mib": "part",
    "spec.request.capabilities": "least_memory",
    "spec.request.capabilities.architecture": "least_architecture",
    "spec.request.capabilities.labels": "capability_labels",
    "spec.request.tier_choice": "tier_choice",
    "spec.request.mix_tiers": "mix_tiers",
    "spec.request.node_labels": "node_labels",
    "spec.request.not_labels": "not_labels",
    "spec.request.not_nodes": "not_nodes",
    "spec.request.topology": "level_preferred",
    "spec.request.topology.required": "level_required",
    "spec.request.topology.wait_s": "level_wait",
    "spec.request.spread_level": "spread_level",
    "spec.request.not_before": "not_before",
    "spec.request.depends_on": "depends_on",
    "spec.request.array": "array_count",
    "spec.request.array.parallel": "array_parallel",
    "spec.request.min_run_s": "min_run",
    "spec.request.restart_cost_s": "restart_cost",
    "spec.request.tiers": "tier",
    "spec.request.cpu_m": "cpu",
    "spec.request.memory_mib": "memory",
    "team": "team",
    "name": "name",
    "kind": "kind",
    "band": "band",
    "priority": "priority",
    "justification": "reason",
}


def _text(label: Any, *, hint: Any = "", required: bool = False, **widget: Any) -> forms.CharField:
    return forms.CharField(
        label=label,
        help_text=hint,
        required=required,
        # No max_length: the browser would cut off what is pasted, and say nothing.
        validators=[MaxLengthValidator(LONGEST)],
        widget=forms.Textarea() if widget.pop("lines", False) else forms.TextInput(attrs=widget),
    )


class RequestForm(forms.Form):
    """The request form. After `is_valid()`, `spec` is the parsed document."""

    name = _text(gettext_lazy("Name"), required=True, autocomplete="off")
    team = forms.ChoiceField(label=gettext_lazy("Charged to"))
    kind = forms.ChoiceField(choices=Kind.choices)
    tier = _text(gettext_lazy("Which GPU"), required=True)
    gpus_per_replica = _text(
        gettext_lazy("GPUs per replica"),
        hint=gettext_lazy("All on one node"),
        required=True,
        inputmode="numeric",
    )
    replicas = _text(
        gettext_lazy("Replicas"), hint=gettext_lazy("They start together"), required=True, inputmode="numeric"
    )
    time_limit = _text(gettext_lazy("Time limit"), hint=gettext_lazy("8 h, 90 m, 2 d; empty: none"))
    command = _text(
        gettext_lazy("Command"),
        hint=gettext_lazy("As in a shell, without pipes and variables"),
        required=True,
        lines=True,
    )
    reason = _text(gettext_lazy("What is it for"), hint=gettext_lazy("Read by whoever approves it"))
    # shown only to teams with the right to it
    band = forms.TypedChoiceField(
        label=gettext_lazy("Critical"),
        help_text=gettext_lazy("Goes before all fair share, up to the cap of your team's right"),
        choices=[
            (number, str(number) if number else gettext_lazy("no")) for number in range(HIGHEST_BAND + 1)
        ],
        coerce=int,
        required=False,
    )
    cpu = _text(gettext_lazy("CPU cores per replica"), required=True, inputmode="decimal")
    memory = _text(gettext_lazy("Memory per replica"), hint=gettext_lazy("Such as 16 GiB"), required=True)
    env = _text(gettext_lazy("Environment"), hint=gettext_lazy("NAME=value, one on each line"), lines=True)
    working_dir = _text(gettext_lazy("Working folder"))
    checkpoint_dir = _text(gettext_lazy("Checkpoint folder"))
    image = _text(gettext_lazy("Container image"), hint=gettext_lazy("For nodes that run containers"))
    ports = _text(
        gettext_lazy("Ports"),
        hint=gettext_lazy("A name on each line, then a health check if there is one: http /healthz"),
        lines=True,
    )
    priority = _text(
        gettext_lazy("Priority"),
        hint=gettext_lazy("Inside the team, −1000 to 1000; 0 is usual"),
        inputmode="numeric",
    )
    preemptible = forms.ChoiceField(
        label=gettext_lazy("May be taken back"),
        required=False,
        choices=(
            ("", gettext_lazy("as usual: training with a checkpoint folder")),
            ("yes", gettext_lazy("yes: it starts again later")),
            ("no", gettext_lazy("no: it must stay inside the guarantee")),
        ),
    )

    part = _text(
        gettext_lazy("Part of a GPU"),
        hint=gettext_lazy("A share such as 0.25, GPU memory such as 10 GiB, or both"),
    )
    replicas_most = _text(
        gettext_lazy("At most replicas"),
        hint=gettext_lazy("Starts with more if there is room"),
        inputmode="numeric",
    )
    elastic = forms.BooleanField(
        label=gettext_lazy("Elastic: replicas come and go while it runs"), required=False
    )
    other_tiers = _text(
        gettext_lazy("Other GPUs that would do"), hint=gettext_lazy("Tiers, the preferred first")
    )
    tier_choice = forms.ChoiceField(
        label=gettext_lazy("Of these take"),
        required=False,
        choices=(
            ("value", gettext_lazy("the best result per cost")),
            ("order", gettext_lazy("the first that is free")),
        ),
    )
    mix_tiers = forms.BooleanField(
        label=gettext_lazy("Replicas may stand on several of them"), required=False
    )
    least_memory = _text(gettext_lazy("GPU memory at least"), hint=gettext_lazy("Such as 40 GiB"))
    least_architecture = forms.ChoiceField(
        label=gettext_lazy("Generation at least"),
        required=False,
        choices=(("", gettext_lazy("any")), *((one, one) for one in ARCHITECTURES)),
    )
    capability_labels = _text(gettext_lazy("It can"), hint=gettext_lazy("Such as bf16, nvlink"))
    node_labels = _text(gettext_lazy("Only nodes with"), hint=gettext_lazy("Labels such as zone=a"))
    not_labels = _text(gettext_lazy("No nodes with"), hint=gettext_lazy("Labels"))
    not_nodes = _text(gettext_lazy("Not on"), hint=gettext_lazy("Names of nodes"))
    level_required = forms.ChoiceField(label=gettext_lazy("All replicas in one"), required=False)
    level_preferred = forms.ChoiceField(label=gettext_lazy("If possible in one"), required=False)
    level_wait = _text(gettext_lazy("Wait for that"), hint=gettext_lazy("Such as 10 m; then anywhere"))
    spread_level = forms.ChoiceField(label=gettext_lazy("Spread evenly over"), required=False)
    not_before = _text(gettext_lazy("Not before"), type="datetime-local")
    depends_on = _text(
        gettext_lazy("After"),
        hint=gettext_lazy("Ids of workloads that must succeed first, such as w-7k3f9q2m"),
    )
    array_count = _text(
        gettext_lazy("So many times"),
        hint=gettext_lazy("An array: each is told its number in GPUYARD_ARRAY_INDEX"),
        inputmode="numeric",
    )
    array_parallel = _text(
        gettext_lazy("At once"), hint=gettext_lazy("Empty: as many as there is room for"), inputmode="numeric"
    )
    min_run = _text(gettext_lazy("Not taken back before"), hint=gettext_lazy("Such as 30 m of running"))
    restart_cost = _text(gettext_lazy("Starting again costs"), hint=gettext_lazy("Such as 5 m"))

    spec: Spec | None = None
    # what can be answered while name and command are still missing
    question: Spec | None = None

    def __init__(self, *args: Any, teams: Sequence[tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        team = self.fields["team"]
        assert isinstance(team, forms.ChoiceField)
        team.choices = list(teams)
        self._levels()
        for field in self.fields.values():
            field.error_messages["required"] = _("This is empty. Fill it in.")
        team.error_messages["invalid_choice"] = _(
            "You cannot request for this team. Choose one from the list."
        )

    def _levels(self) -> None:
        """Wider levels first; what the fleet does not have cannot be chosen."""
        fabric = [(level, level) for level in fabric_levels()]
        node, island = ("node", _("node")), ("island", _("NVLink island"))
        choices = {
            "level_required": [("", _("anything")), *fabric, node, island],
            "level_preferred": [("", _("anything")), *fabric, node, island],
            "spread_level": [("", _("nothing in particular")), *fabric, node],
        }
        for name, options in choices.items():
            field = self.fields[name]
            assert isinstance(field, forms.ChoiceField)
            field.choices = options
            field.error_messages["invalid_choice"] = _("There is no such level. Choose one from the list.")

    def clean(self) -> dict[str, Any]:
        data = self.cleaned_data
        document = self._document(data)
        try:
            self.spec = self.question = spec_parse(document)
        except Invalid as exc:
            self.question = _parsed({**document, "command": ["-"]})
            self.refuse(exc.errors)
        if set(self.errors) - UNASKED:
            self.question = None
        return data

    def clean_priority(self) -> int | str:
        text: str = self.cleaned_data["priority"]
        return whole(text) if text.strip() else 0

    def refuse(self, errors: Sequence[FieldError]) -> None:
        """Puts what a service found wrong beside the fields it concerns."""
        for error in errors:
            field = next((FIELDS[path] for path in _upwards(error.field or "") if path in FIELDS), None)
            if field is not None and field in self.errors:
                continue  # empty or unreadable: said already
            text = f"{error.message} {error.remedy or ''}".strip()
            self.add_error(field, text)

    def _document(self, data: dict[str, Any]) -> dict[str, Any]:
        replicas = whole(data.get("replicas", ""))
        most = data.get("replicas_most", "").strip()
        parts = self._parts(data)
        if not self._is_part(parts):
            parts["gpus_per_replica"] = whole(data.get("gpus_per_replica", ""))
        return {
            "command": self._command(data.get("command", "")),
            "image": data.get("image") or None,
            "env": self._env(data.get("env", "")),
            "working_dir": data.get("working_dir") or None,
            "checkpoint_dir": data.get("checkpoint_dir") or None,
            "ports": self._ports(data.get("ports", "")),
            "time_limit_s": self._time(data.get("time_limit", "")),
            "request": {
                "replicas_min": replicas,
                "replicas_max": whole(most) if most else replicas,
                "cpu_m": self._cpu(data.get("cpu", "")),
                "memory_mib": self._memory(data.get("memory", "")),
                **parts,
            },
        }

    def _parts(self, data: dict[str, Any]) -> dict[str, Any]:
        try:
            return request_parts(data)
        except Unreadable as exc:
            self.add_error(exc.field, exc.text)
            return {"tiers": [data["tier"]] if data.get("tier") else []}

    def _is_part(self, parts: dict[str, Any]) -> bool:
        """A part of a GPU needs no number of GPUs; the 1 that the form begins with is none."""
        is_part = bool({"share", "gpu_memory_mib"} & set(parts))
        return is_part and self.cleaned_data.get("gpus_per_replica", "").strip() in {"", "1"}

    def _command(self, text: str) -> list[str]:
        try:
            return shlex.split(text)
        except ValueError:
            self.add_error("command", _("A quotation mark is not closed. Close it, or put a \\ before it."))
            return ["-"]

    def _env(self, text: str) -> dict[str, str]:
        env: dict[str, str] = {}
        for line in filter(None, (line.strip() for line in text.splitlines())):
            name, equals, value = line.partition("=")
            if not equals:
                self.add_error("env", _("Write NAME=value on each line; “%s” has no =.") % line[:40])
                return {}
            env[name.strip()] = value
        return env

    def _ports(self, text: str) -> list[dict[str, Any]]:
        found = []
        for line in filter(None, (line.split() for line in text.splitlines())):
            if len(line) > 2 or line[0].startswith("/"):
                self.add_error("ports", _("Write a name on each line, then its health check: http /healthz."))
                return []
            found.append({"name": line[0], "health_path": line[1] if len(line) > 1 else None})
        return found

    def _time(self, text: str) -> int | None:
        if not text.strip():
            return None
        seconds = parse_duration(text)
        if seconds is None:
            self.add_error("time_limit", _("This is no time. Write one such as 90 m, 8 h or 2 d."))
        return seconds

    def _cpu(self, text: str) -> int:
        found = CORES.fullmatch(text.strip())
        if not found:
            if "cpu" not in self.errors:
                self.add_error("cpu", _("This is no number. Write cores such as 4 or 0.5."))
            return 1
        return int(Decimal(found[0]) * 1000)

    def _memory(self, text: str) -> int:
        found = mebibytes(text)
        if found is None and "memory" not in self.errors:
            self.add_error("memory", _("This is no amount of memory. Write one such as 16 GiB."))
        return 1 if found is None else found


def request_initial(document: dict[str, Any], **others: Any) -> dict[str, Any]:
    """The form's fields filled from a spec: for “again”."""
    request, limit = document["request"], document.get("time_limit_s")
    return {
        **parts_initial(request),
        "gpus_per_replica": request["gpus_per_replica"],
        "replicas": request["replicas_min"],
        "replicas_most": request["replicas_max"] if request["replicas_max"] > request["replicas_min"] else "",
        "time_limit": duration_exact(limit) if limit else "",
        "command": shlex.join(document["command"]),
        "cpu": number(request["cpu_m"], 1000),
        "memory": memory_text(request["memory_mib"]),
        "env": "\n".join(f"{name}={value}" for name, value in (document.get("env") or {}).items()),
        "working_dir": document.get("working_dir") or "",
        "checkpoint_dir": document.get("checkpoint_dir") or "",
        "image": document.get("image") or "",
        "ports": "\n".join(
            f"{port['name']} {port.get('health_path') or ''}".rstrip() for port in document.get("ports") or ()
        ),
        **others,
    }


def _parsed(document: dict[str, Any]) -> Spec | None:
    try:
        return spec_parse(document)
    except Invalid:
        return None


def _upwards(path: str) -> list[str]:
    """spec.env.A → spec.env.A, spec.env, spec."""
    parts = path.split(".")
    return [".".join(parts[:end]) for end in range(len(parts), 0, -1)]
