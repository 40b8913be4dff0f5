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
from gpuyard.web.wording import duration, parse_duration
from scheduling.models import Kind
from scheduling.policy_models import HIGHEST_BAND
from scheduling.specs import Spec, spec_parse

LONGEST = 64 * 1024
# Not whatever Decimal takes: 1e999990 is a number whose digits take a server's thread for minutes.
CORES = re.compile(r"-?[0-9]{1,9}(?:\.[0-9]{0,9})?|\.[0-9]{1,9}")
MEMORY = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)\s*(mib|mb|m|gib|gb|g|tib|tb|t)?", re.IGNORECASE)
MIB = {"m": 1, "g": 1024, "t": 1024 * 1024}

# Where a wrong field of the spec stands on the form.
UNASKED = frozenset({"name", "command", "reason"})  # neither start nor cost depends on these
FIELDS = {
    "spec.command": "command",
    "spec.env": "env",
    "spec.working_dir": "working_dir",
    "spec.checkpoint_dir": "checkpoint_dir",
    "spec.time_limit_s": "time_limit",
    "spec.ports": "port",
    "spec.request.gpus_per_replica": "gpus_per_replica",
    "spec.request.replicas_min": "replicas",
    "spec.request.replicas_max": "replicas",
    "spec.request.tiers": "tier",
    "spec.request.cpu_m": "cpu",
    "spec.request.memory_mib": "memory",
    "team": "team",
    "name": "name",
    "kind": "kind",
    "band": "band",
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
    port = _text(
        gettext_lazy("Port name"), hint=gettext_lazy("Such as http; the number is given to the program")
    )
    health_path = _text(gettext_lazy("Health check"), hint=gettext_lazy("Such as /healthz, on that port"))

    spec: Spec | None = None
    # what can be answered while name and command are still missing
    question: Spec | None = None

    def __init__(self, *args: Any, teams: Sequence[tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        team = self.fields["team"]
        assert isinstance(team, forms.ChoiceField)
        team.choices = list(teams)
        for field in self.fields.values():
            field.error_messages["required"] = _("This is empty. Fill it in.")
        team.error_messages["invalid_choice"] = _(
            "You cannot request for this team. Choose one from the list."
        )

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

    def refuse(self, errors: Sequence[FieldError]) -> None:
        """Puts what a service found wrong beside the fields it concerns."""
        for error in errors:
            field = next((FIELDS[path] for path in _upwards(error.field or "") if path in FIELDS), None)
            if field is not None and field in self.errors:
                continue  # empty or unreadable: said already
            text = f"{error.message} {error.remedy or ''}".strip()
            self.add_error(field, text)

    def _document(self, data: dict[str, Any]) -> dict[str, Any]:
        replicas = _whole(data.get("replicas", ""))
        return {
            "command": self._command(data.get("command", "")),
            "env": self._env(data.get("env", "")),
            "working_dir": data.get("working_dir") or None,
            "checkpoint_dir": data.get("checkpoint_dir") or None,
            "ports": self._ports(data.get("port", ""), data.get("health_path", "")),
            "time_limit_s": self._time(data.get("time_limit", "")),
            "request": {
                "replicas_min": replicas,
                "replicas_max": replicas,
                "gpus_per_replica": _whole(data.get("gpus_per_replica", "")),
                "tiers": [data["tier"]] if data.get("tier") else [],
                "cpu_m": self._cpu(data.get("cpu", "")),
                "memory_mib": self._memory(data.get("memory", "")),
            },
        }

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

    def _ports(self, name: str, health_path: str) -> list[dict[str, Any]]:
        if health_path and not name:
            self.add_error("port", _("A health check needs a port. Name one, such as http."))
        return [{"name": name, "health_path": health_path or None}] if name else []

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
        found = MEMORY.fullmatch(text.strip())
        if not found:
            if "memory" not in self.errors:
                self.add_error("memory", _("This is no amount of memory. Write one such as 16 GiB."))
            return 1
        return int(Decimal(found[1]) * MIB[(found[2] or "g")[0].lower()])


def request_initial(document: dict[str, Any], **others: Any) -> dict[str, Any]:
    """The form's fields filled from a spec: for “again”."""
    request, ports = document["request"], document.get("ports") or [{}]
    limit = document.get("time_limit_s")
    return {
        "tier": request["tiers"][0],
        "gpus_per_replica": request["gpus_per_replica"],
        "replicas": request["replicas_max"],
        "time_limit": duration(limit) if limit else "",
        "command": shlex.join(document["command"]),
        "cpu": f"{request['cpu_m'] / 1000:g}",
        "memory": f"{request['memory_mib'] / 1024:g} GiB",
        "env": "\n".join(f"{name}={value}" for name, value in (document.get("env") or {}).items()),
        "working_dir": document.get("working_dir") or "",
        "checkpoint_dir": document.get("checkpoint_dir") or "",
        "port": ports[0].get("name", ""),
        "health_path": ports[0].get("health_path") or "",
        **others,
    }


def _parsed(document: dict[str, Any]) -> Spec | None:
    try:
        return spec_parse(document)
    except Invalid:
        return None


def _whole(text: str) -> int | str:
    """A whole number as one; anything else as it is, for the spec to refuse in its own words."""
    cleaned = text.strip()
    return int(cleaned) if re.fullmatch(r"[+-]?[0-9]{1,18}", cleaned) else cleaned


def _upwards(path: str) -> list[str]:
    """spec.env.A → spec.env.A, spec.env, spec."""
    parts = path.split(".")
    return [".".join(parts[:end]) for end in range(len(parts), 0, -1)]
