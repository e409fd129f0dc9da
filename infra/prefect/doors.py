"""What the holders of a server's password may write through Prefect's API, and what only its owner.

The password lets people see runs, start those that the owner's deployments offer, and schedule or
pause them. It must not let them have other code executed. There are many ways in, and each version
of Prefect may add one, so a request must go to a path of a closed list, and is judged by what it
brings:

    the owner's request                     all of it, but for the times of a schedule
    a form's parameters, by a known way     what the form would take, see `Doors`
    parameters by any other way             nothing
    a field that says what code runs        nothing
    the times of a schedule                 a cron or an interval that fires; the owner: a rule, too
    where a result lies, and how to read it nothing: whoever reads it may unpickle it
    a path that is not in the list          nothing: a block, an automation, a deletion
    the secrets of a block                  nothing
"""

import asyncio
import hmac
import importlib
import json
import math
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from infra.prefect.owner import HEADER
from infra.prefect.server import PAGES
from infra.prefect.times import times_problem

_ASK_TIMEOUT = 30.0
"""Longest wait for the server's answer about a deployment [s]."""
_TAG = "parcel"
"""Tag by which our commands and pages find our deployments."""

_READS = ("GET", "HEAD", "OPTIONS")
_LOOKS = ("filter", "count", "paginate", "history")
"""Last part of the paths at which a POST only looks something up."""
_REPORTS = ("logs", "events", "artifacts", "task_runs", "ui")
"""First part of the paths at which nothing but what happened is told, and nothing is run for it."""

_WRITES = (
    ("POST", "flows"),
    ("POST", "flow_runs"),
    ("POST", "flow_runs/bulk_set_state"),
    ("POST", "flow_runs/lateness"),
    ("PATCH", "flow_runs/*"),
    ("PATCH", "flow_runs/*/labels"),
    ("POST", "flow_runs/*/set_state"),
    ("POST", "flow_runs/*/resume"),
    ("POST", "flow_runs/*/input"),
    ("DELETE", "flow_runs/*/input/*"),
    ("PATCH", "deployments/*"),
    ("POST", "deployments/*/create_flow_run"),
    ("POST", "deployments/*/create_flow_run/bulk"),
    ("POST", "deployments/*/schedules"),
    ("PATCH", "deployments/*/schedules/*"),
    ("DELETE", "deployments/*/schedules/*"),
    ("POST", "deployments/*/pause_deployment"),
    ("POST", "deployments/*/resume_deployment"),
    ("POST", "deployments/get_scheduled_flow_runs"),
    ("PUT", "saved_searches"),
    ("DELETE", "saved_searches/*"),
    ("POST", "templates/validate"),
    ("POST", "automations/templates/validate"),
    # What runs and workers report, which know the password alone.
    ("POST", "work_pools/*/get_scheduled_flow_runs"),
    ("POST", "work_pools/*/workers/heartbeat"),
    ("POST", "work_pools/*/concurrency_status"),
    ("POST", "work_queues/*/get_runs"),
    ("POST", "work_queues/*/concurrency_status"),
    ("POST", "concurrency_limits/increment"),
    ("POST", "concurrency_limits/decrement"),
    ("POST", "v2/concurrency_limits/increment"),
    ("POST", "v2/concurrency_limits/increment-with-lease"),
    ("POST", "v2/concurrency_limits/decrement"),
    ("POST", "v2/concurrency_limits/decrement-with-lease"),
    ("POST", "v2/concurrency_limits/leases/*/renew"),
)
"""Method and path of all that guests may write, beside `_REPORTS`; "*" is one part of any text."""

_SETS_TIMES = (
    ("POST", "deployments"),
    ("PATCH", "deployments/*"),
    ("POST", "deployments/*/schedules"),
    ("PATCH", "deployments/*/schedules/*"),
)
"""Method and path at which Prefect takes the times of schedules, which bind the owner, too."""

_SET_STATE = ("set_state", "bulk_set_state")
"""Last part of the paths at which the state of a run is set."""

_BLOCKS, _SECRETS = ("block_documents", "block_types"), "include_secrets"
"""First parts of the paths that give blocks, and what asks them for their secrets in the open."""

_RESULT = ("storage_key", "serializer")
"""Fields of a state's `data` that say which file is its result, and what code reads that file."""

_STATES = ("task_runs", "events")
"""First part of the paths of reports that hold states of runs."""

_CODE = (
    "job_variables",
    "infra_overrides",
    "entrypoint",
    "pull_steps",
    "path",
    "storage_document_id",
    "infrastructure_document_id",
    "work_pool_name",
    "work_queue_name",
    "base_job_template",
    "parameter_openapi_schema",
    "enforce_parameter_schema",
    "default_result_storage_block_id",
    *_RESULT,
    "idempotency_key",
)
"""Fields that say what code a run loads, where it runs, or what is not checked of its form.

With the last one, a guest could take the place of a schedule's next run, whose key can be guessed.
"""


_KIND = "__prefect_kind"
"""Key of an object that stands for a value which Prefect makes from it."""


class RequestRefusedError(Exception):
    """A request is refused.

    Attributes:
      status: status code of the answer.
    """

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class _Writing(NamedTuple):
    """What a request writes about one deployment.

    Attributes:
      deployment: id of the deployment.
      forms: objects with the parameters of its runs.
      is_change: whether the first of them changes the deployment itself.
      schedule: id of the schedule that is changed; "" if none is.
    """

    deployment: str
    forms: Sequence[Any]
    is_change: bool = False
    schedule: str = ""


class Doors:
    """Refuses what only the owner may write, and parameters that a form would not take.

    Args:
      app: application that answers the other requests.
      proof: value of `HEADER` in the owner's requests.
      api: address of its API [URI].
      check: "module:function" of the check of a form: (deployment as the API gives it, parameters)
        -> the error message, or None; "" for no check.
      forms: beginning of the entry points of flows whose parameters are those of a form; "" is that
        of every flow.
    """

    def __init__(
        self, app: ASGIApp, *, proof: str, api: str, check: str = "", forms: str = ""
    ) -> None:
        self._app, self._proof, self._api = app, proof, api
        self._check, self._forms = check, forms

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket" and not self._is_owner(scope):
            await self._app(scope, _without_results(receive), send)
            return
        if scope["type"] != "http" or not self._is_checked(scope):
            await self._app(scope, receive, send)
            return
        is_owner = self._is_owner(scope)
        if _asks_for_secrets(scope) and not is_owner:
            await _refusal_response(_owner_only_error("a block's secrets", "read"))(
                scope, receive, send
            )
            return
        request = Request(scope, receive)
        try:
            body = await request.body()
        except ClientDisconnect:
            return
        try:
            stated = values = parse_request_body(body)
            if is_owner:
                await asyncio.to_thread(check_owners, values)
                await self._app(scope, _replay_request_body(body, receive), send)
                return
            values = None if (values := plain_fields(stated)) is _ABSENT else values
            writing = writing_of(request.method, _api_path_parts(scope["path"]), values)
            if writing is None:
                check_guests(request.method, _api_path_parts(scope["path"]), values)
            else:
                known = request.headers.get("authorization", "")
                kept = await asyncio.to_thread(self._check_writing, writing, known)
                if kept and isinstance(values, dict):
                    values = {**values, **kept}
        except (RequestRefusedError, RecursionError) as error:
            refused = (
                error
                if isinstance(error, RequestRefusedError)
                else _unreadable_body_error("nested too deeply")
            )
            await _refusal_response(refused)(scope, receive, send)
            return
        if values != stated:  # What was checked goes on, not what Prefect would make of the rest.
            body = json.dumps(values).encode()
            rest = [item for item in scope["headers"] if item[0] != b"content-length"]
            scope = {**scope, "headers": [*rest, (b"content-length", str(len(body)).encode())]}
        await self._app(scope, _replay_request_body(body, receive), send)

    def _is_checked(self, scope: Scope) -> bool:
        method, parts = scope["method"], _api_path_parts(scope["path"])
        if f"{scope['path']}/".startswith(f"{PAGES}/"):
            return False
        is_look = method in _READS or (
            method == "POST" and parts[-1] in _LOOKS and parts[0] not in _BLOCKS
        )
        is_report = parts[0] in _REPORTS and parts[0] not in _STATES and method != "DELETE"
        if (is_look or is_report) and not _asks_for_secrets(scope):
            return False
        return not self._is_owner(scope) or any(
            method == known and _is_at(parts, path) for known, path in _SETS_TIMES
        )

    def _is_owner(self, scope: Scope) -> bool:
        given = dict(scope["headers"]).get(HEADER.lower().encode(), b"")
        return hmac.compare_digest(given, self._proof.encode())

    def _check_writing(self, writing: _Writing, known: str) -> dict[str, Any]:
        """Checks what is written about a deployment; returns fields that it is to repeat."""
        found = self._fetch_deployment_from_api(writing.deployment, known)
        if found is None:
            return {}  # Prefect says that there is no such deployment.
        for i, form in enumerate(writing.forms):
            check_form(form, found, is_change=writing.is_change and i == 0)
            is_change = writing.is_change and i == 0
            parameters = parameters_of(form, found, is_change=is_change, schedule=writing.schedule)
            is_form = str(found.get("entrypoint")).startswith(self._forms)
            if parameters is None or not (self._check and is_form):
                continue
            module, _, name = self._check.partition(":")
            if why := getattr(importlib.import_module(module), name)(found, parameters):
                raise RequestRefusedError(409, why)
        # Prefect empties the parameters of a schedule whose change does not repeat them. Its UI
        # does not, so a schedule that was switched off and on there would run something else.
        if writing.schedule and "parameters" not in writing.forms[0]:
            there = _schedule_of(found, writing.schedule)
            return {"parameters": there["parameters"]} if there.get("parameters") else {}
        return {}

    def _fetch_deployment_from_api(self, deployment: str, known: str) -> dict[str, Any] | None:
        address = f"{self._api}/deployments/{deployment}"
        asked = urllib.request.Request(address, headers={"Authorization": known})
        try:
            with urllib.request.urlopen(asked, timeout=_ASK_TIMEOUT) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise RequestRefusedError(503, f"the deployment could not be read: {error}") from None
        except (OSError, ValueError) as error:
            raise RequestRefusedError(503, f"the deployment could not be read: {error}") from None


def _refusal_response(error: RequestRefusedError) -> JSONResponse:
    return JSONResponse({"detail": str(error)}, error.status)


def _asks_for_secrets(scope: Scope) -> bool:
    """Returns whether a request's address asks for the secrets of blocks, wherever it goes."""
    asked = urllib.parse.parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    return any(value != "false" for value in asked.get(_SECRETS, ()))


def parse_request_body(body: bytes | str) -> Any:
    """Returns the values of a request's body; None if it is empty.

    Raises:
      RefusedError: if two readers of it could find different values: it is no JSON in UTF-8, states
        a key twice, or has a number that JSON has not.
    """
    if not body:
        return None
    try:
        return json.loads(
            body.decode("utf-8") if isinstance(body, bytes) else body,
            object_pairs_hook=_parse_body_object,
            parse_constant=_parse_body_number,
            parse_float=_parse_body_number,
        )
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise _unreadable_body_error(reason) from None


def _unreadable_body_error(reason: str) -> RequestRefusedError:
    return RequestRefusedError(
        400, f"the body must be JSON in UTF-8 without repeated keys: {reason}."
    )


_ABSENT = object()


def plain_fields(values: Any) -> Any:
    """Returns a JSON value in which fields that were filled in as JSON texts have their values.

    Prefect's forms send such texts for fields without a form of their own, and Prefect reads them
    after every check: `{"__prefect_kind": "json", "value": "[1]"}` is `[1]`.

    Raises:
      RefusedError: if a field is a template or names a variable, whose value is not known here.
    """
    if isinstance(values, list):
        return [each for value in values if (each := plain_fields(value)) is not _ABSENT]
    if not isinstance(values, dict):
        return values
    if _KIND not in values:
        named = {name: plain_fields(value) for name, value in values.items()}
        return {name: value for name, value in named.items() if value is not _ABSENT}
    kind, value = values[_KIND], values.get("value")
    if kind not in ("json", "none") or not values.keys() <= {_KIND, "value"}:
        raise RequestRefusedError(
            409, "a field must be given as its value, not by a template or variable."
        )
    if kind == "none" or value in (None, ""):
        return _ABSENT if value in (None, "") else plain_fields(value)
    if not isinstance(value, str):
        raise RequestRefusedError(409, f"a field's JSON must be a text, got {value!r:.80}.")
    return plain_fields(parse_request_body(value))


def _parse_body_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{repeated!r} is there twice")
    return values


def _parse_body_number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no number of JSON")
    return number


def _api_path_parts(path: str) -> list[str]:
    """Returns the parts of a path below Prefect's API."""
    parts = path.strip("/").split("/")
    return parts[1:] if parts[0] == "api" and len(parts) > 1 else parts


def writing_of(method: str, parts: Sequence[str], values: Any) -> _Writing | None:
    """Returns the parts of a known request about a deployment; None for any other request.

    Args:
      method: method of the request.
      parts: parts of its path below the API.
      values: its body's values.
    """
    key: Any = None
    forms, is_change, schedule = [values], False, ""
    match method, [*parts]:
        case "POST", ["deployments", key, "create_flow_run"]:
            pass
        case "POST", ["deployments", key, "create_flow_run", "bulk"]:
            forms = values
        case "POST", ["deployments", key, "schedules"]:
            forms = values
        case "PATCH", ["deployments", key, "schedules", schedule]:
            pass
        case "PATCH", ["deployments", key] if isinstance(values, dict):
            change = {name: value for name, value in values.items() if name != "schedules"}
            schedules = values.get("schedules")
            forms = [change, *(schedules if isinstance(schedules, list) else [])]
            is_change = True
        case "POST", ["flow_runs"] if isinstance(values, dict):
            key = values.get("deployment_id")
    try:
        key = str(uuid.UUID(key))
    except (ValueError, TypeError, AttributeError):
        return None
    if not isinstance(forms, list) or not all(isinstance(form, dict) for form in forms):
        return None  # Prefect takes no other shape; what this one holds is not let through.
    return _Writing(key, forms, is_change, schedule)


def check_guests(method: str, parts: Sequence[str], values: Any) -> None:
    """Checks a request that brings no parameters by a known way.

    Args:
      method: its method.
      parts: parts of its path below the API.
      values: its body's values.

    Raises:
      RefusedError: if only the server's owner may make it.
    """
    if method == "POST" and parts[0] in _BLOCKS and parts[-1] in _LOOKS:
        if isinstance(values, dict) and values.get(_SECRETS) not in (None, False):
            raise _owner_only_error("a block's secrets", "read")
        return
    if parts[0] in _STATES and method != "DELETE":
        for name, value in _walk_body_entries(values):
            if name in _RESULT and value is not None:
                raise _owner_only_error(name)
        return
    if not any(method == known and _is_at(parts, path) for known, path in _WRITES):
        raise _owner_only_error(f"{method} /{'/'.join(parts)}")
    if parts[0] == "flow_runs" and parts[-1] in _SET_STATE and _asks_to_suspend_run(values):
        raise RequestRefusedError(
            409,
            "a run cannot be paused under way: Cancel ends it, and Retry then makes what is "
            "missing; what is made stays.",
        )
    if [*parts] == ["flow_runs"] and isinstance(values, dict) and not values.get("deployment_id"):
        # The row of a run that the sender itself executes; no worker takes it.
        values = {name: value for name, value in values.items() if name != "parameters"}
    for name, value in _walk_body_entries(values):
        if (name in _CODE or name == "parameters") and not _is_harmless(name, value):
            raise _owner_only_error(name)


def _asks_to_suspend_run(values: Any) -> bool:
    """Returns whether a state asks a run to end until it is resumed, as the UI's *Pause* does."""
    # Nothing tells the run so: its row would say that it is suspended while it works on, and
    # *Resume* would start another process of it beside the first.
    state = values.get("state") if isinstance(values, dict) else None
    details = state.get("state_details") if isinstance(state, dict) else None
    return isinstance(details, dict) and bool(details.get("pause_reschedule"))


def check_owners(values: Any) -> None:
    """Checks what the owner writes about deployments: the times of their schedules.

    Args:
      values: values of the request's body.

    Raises:
      RefusedError: if a schedule would never fire, see `times_problem`.
    """
    # At the places where Prefect takes them, and nowhere else: parameters may have such a name.
    #
    #   POST deployments/, PATCH deployments/ID    {"schedules": [{"schedule": {"cron": …}}]}
    #   POST deployments/ID/schedules              [{"schedule": {"cron": …}}]
    #   PATCH deployments/ID/schedules/ID          {"schedule": {"cron": …}}
    forms = values if isinstance(values, list) else [values]
    for form in [*forms]:
        if isinstance(form, dict) and isinstance(form.get("schedules"), list):
            forms = [*forms, *form["schedules"]]
    for form in forms:
        times = form.get("schedule") if isinstance(form, dict) else None
        if times is not None:
            check_times(times, is_owner=True)


def _is_at(parts: Sequence[str], path: str) -> bool:
    stated = path.split("/")
    return len(parts) == len(stated) and all(
        part and known in ("*", part) for part, known in zip(parts, stated, strict=True)
    )


def check_form(form: Mapping[str, Any], found: Mapping[str, Any], *, is_change: bool) -> None:
    """Checks all but the parameters of what is written about a deployment.

    Args:
      form: object with the parameters of runs.
      found: the deployment, as the API gives it.
      is_change: whether it changes the deployment itself: then an empty value is a change, too.

    Raises:
      RefusedError: if only the server's owner may write it.
    """
    for name, value in form.items():
        if name == "schedule" and value is not None:
            check_times(value, [each.get("schedule") for each in found.get("schedules") or ()])
        if name == "parameters" or (name in found and _is_same_json(value, found[name])):
            continue
        if name in _CODE and (is_change or not _is_harmless(name, value)):
            raise _owner_only_error(name)
        for inner, stated in _walk_body_entries(value):
            if (inner in _CODE or inner == "parameters") and not _is_harmless(inner, stated):
                raise _owner_only_error(inner)
    tags = form.get("tags")
    if is_change and "tags" in form and _TAG in found["tags"] and _TAG not in (tags or ()):
        raise RequestRefusedError(403, f"tags must keep {_TAG}, by which the deployment is found.")


def check_times(times: Any, known: Sequence[Any] = (), *, is_owner: bool = False) -> None:
    """Checks the times at which a schedule fires.

    Args:
      times: schedule as Prefect's API takes it.
      known: those that the deployment has already, which may be sent back.
      is_owner: whether the owner sets them, who may set a rule (rrule), too.

    Raises:
      RefusedError: if they are not accepted, see `times_problem`.
    """
    if any(_is_same_json(times, each) for each in known):
        return
    if why := times_problem(times, rules=is_owner):
        raise RequestRefusedError(409, why)


def parameters_of(
    form: Mapping[str, Any], found: Mapping[str, Any], *, is_change: bool, schedule: str = ""
) -> dict[str, Any] | None:
    """Returns all parameters of the runs that a form asks for; None if they are known to be right.

    Args:
      form: object with the parameters.
      found: the deployment, as the API gives it.
      is_change: whether they become those of the deployment.
      schedule: id of the schedule whose parameters they become, if it is there already.

    Raises:
      RefusedError: if they hold what no form has.
    """
    own: Mapping[str, Any] = found.get("parameters") or {}
    given = form.get("parameters")
    if is_change and "parameters" not in form:
        return None
    if given is None and not is_change:
        given = {}
    if not isinstance(given, dict):
        raise RequestRefusedError(
            409, f"parameters must be an object of fields, got {given!r:.80}."
        )
    whole = dict(given) if is_change else {**own, **given}
    # What is there already may be sent back, as Prefect's UI does, since the owner may have set it.
    there = _schedule_of(found, schedule)
    if any(_is_same_json(whole, {**own, **(each.get("parameters") or {})}) for each in ({}, there)):
        return None
    fields = (found.get("parameter_openapi_schema") or {}).get("properties") or {}
    # Such as the studies that a deployment carries: they are its own, and no form shows them.
    hidden = [name for name in {**own, **whole} if name not in fields]
    for name in hidden:
        if name not in whole or name not in own or not _is_same_json(whole[name], own[name]):
            if name == "given" or name in own:
                raise RequestRefusedError(
                    409, f"{name} must be left out: the deployment's own stays."
                )
            raise RequestRefusedError(
                409, f"{name} must be left out; the form has {', '.join(fields) or 'no field'}."
            )
    return whole


def _schedule_of(found: Mapping[str, Any], schedule: str) -> Mapping[str, Any]:
    """Returns a schedule of a deployment, by its id; {} if it has none of it."""
    schedules = found.get("schedules") or ()
    return next((each for each in schedules if str(each.get("id")) == schedule), {})


def _walk_body_entries(values: Any) -> Iterator[tuple[str, Any]]:
    """Yields each key with its value of the objects in a JSON value, at any depth."""
    left = [values]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            yield from value.items()
            left += value.values()
        elif isinstance(value, list):
            left += value


def _is_same_json(value: Any, other: Any) -> bool:
    """Returns whether two JSON values are equal, true and 1 not being so."""
    return json.dumps(value, sort_keys=True) == json.dumps(other, sort_keys=True)


def _is_harmless(name: str, value: Any) -> bool:
    if name == "enforce_parameter_schema":
        return value in (True, None)
    return value is None or value in ({}, [], "")


def _owner_only_error(what: str, done: str = "written") -> RequestRefusedError:
    return RequestRefusedError(
        403,
        f"{what} can be {done} by the server's owner alone: give the command (parcel deploy, "
        f"sweep, schedule) as the user who started the server, or with that user's key, which "
        f"PARCEL_KEY names.",
    )


def _replay_request_body(body: bytes, receive: Receive) -> Receive:
    """Returns a `receive` that first gives a body which was read already."""
    parts = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def again() -> Message:
        return next(parts, None) or await receive()

    return again


def _without_results(receive: Receive) -> Receive:
    """Returns a `receive` of a socket whose events say of no state where its result lies.

    Prefect makes the states of task runs from events, and whoever reads a row reads its state.
    """

    async def checked() -> Message:
        message = await receive()
        text = message.get("text") or message.get("bytes")
        if message["type"] != "websocket.receive" or not text:
            return message
        try:
            values = _drop_results(parse_request_body(text))
        except RequestRefusedError:
            return {"type": "websocket.disconnect", "code": 1008}
        return {"type": "websocket.receive", "text": json.dumps(values)}

    return checked


def _drop_results(values: Any) -> Any:
    """Returns a JSON value without the objects in it that say where a result lies."""
    if isinstance(values, list):
        return [_drop_results(value) for value in values]
    if not isinstance(values, dict):
        return values
    if any(name in values for name in _RESULT):
        return None
    return {name: _drop_results(value) for name, value in values.items()}
