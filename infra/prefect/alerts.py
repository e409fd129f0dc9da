"""Alerts about the runs of a deployment, as automations of the Prefect server.

failed     a run failed, or crashed
stalled    a run made no progress for some minutes, according to `infra.prefect.watch`
over cap   a run lasts longer than some hours; it can be cancelled

The addresses that are notified hold secrets: they are stored as blocks of the server, encrypted
with a key that is not in its database (`infra.prefect.encryption`), and never shown.
"""

import dataclasses
import datetime
import re
import uuid
from collections.abc import Collection, Sequence
from typing import cast

from prefect.automations import CancelFlowRun, EventTrigger, Posture, SendNotification
from prefect.blocks.notifications import CustomWebhookNotificationBlock, SlackWebhook
from prefect.client.orchestration import SyncPrefectClient
from prefect.events.actions import ActionTypes
from prefect.events.schemas.automations import AutomationCore
from prefect.events.schemas.events import ResourceSpecification
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from pydantic import SecretStr

from infra.errors import ConfigError
from infra.prefect.encryption import check_key_stays_apart
from infra.prefect.watch import PROGRESS

_RUNNING = "prefect.flow-run.Running"
_ENDED = {f"prefect.flow-run.{name}" for name in ("Completed", "Failed", "Crashed", "Cancelled")}
_BLOCK = re.compile(r"[a-z-]+/[a-z0-9-]+")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Alerts:
    """Settings of a deployment's alerts.

    Attributes:
      addresses: addresses to notify: https:// of a webhook (Slack's, or any that takes JSON),
        mailto:// in the form of Apprise, or TYPE/NAME of a block of the server.
      stall: time without progress after which a run counts as stalled [minutes].
      cap: longest time of a run [hours]; None for no limit.
      cancel: whether to cancel a run that is over the cap.
    """

    addresses: Sequence[str] = ()
    stall: float = 60.0
    cap: float | None = None
    cancel: bool = False


def register_alerts(
    client: SyncPrefectClient, name: str, deployment_id: str, alerts: Alerts
) -> dict[str, str]:
    """Registers the alerts of a deployment; returns "new", "changed" or "unchanged" for each.

    Args:
      client: client of the server.
      name: name of the deployment.
      deployment_id: id of the deployment.
      alerts: settings of the alerts; existing alerts that they do not ask for stay.

    Raises:
      ConfigError: if an address is invalid, or the server cannot decrypt the one that it replaces.
    """
    if alerts.addresses:
        check_key_stays_apart()
    # Not named after the addresses: a digest would let a reader of the database try passwords.
    blocks = [
        _notification_block_id(client, address, f"parcel-alert-{deployment_id}-{number}")
        for number, address in enumerate(alerts.addresses)
    ]
    return {
        automation.name: _register_automation(client, automation)
        for automation in _alert_automations(name, deployment_id, alerts, blocks)
    }


def _alert_automations(
    name: str, deployment_id: str, alerts: Alerts, blocks: Sequence[uuid.UUID]
) -> Sequence[AutomationCore]:
    def notify(what: str) -> list[ActionTypes]:
        body = (
            f"{what}\n"
            "state: {{ flow_run.state.name }} {{ flow_run.state.message or '' }}\n"
            "{{ flow_run|ui_url }}"
        )
        subject = f"{name}: {{{{ flow_run.name }}}}"
        return [
            SendNotification(block_document_id=block, subject=subject, body=body)
            for block in blocks
        ]

    def trigger(expect: set[str], *, after: Collection[str] = (), within: float = 0.0):
        """Returns a trigger on an expected event; with `after`, on its absence `within` s."""
        return EventTrigger(
            posture=Posture.Proactive if after else Posture.Reactive,
            after=set(after),
            expect=expect,
            match=ResourceSpecification({"prefect.resource.id": "prefect.flow-run.*"}),
            match_related=ResourceSpecification(
                {
                    "prefect.resource.id": f"prefect.deployment.{deployment_id}",
                    "prefect.resource.role": "deployment",
                }
            ),
            for_each={"prefect.resource.id"},
            threshold=1,
            within=datetime.timedelta(seconds=within),
        )

    # Two of them wait for something that does not come:
    #
    #   stalled    after progress or the start, no progress and no end for some minutes
    #   over cap   after the start, no end for some hours
    found = []
    if blocks:
        bad = {"prefect.flow-run.Failed", "prefect.flow-run.Crashed"}
        found += [
            AutomationCore(
                name=f"{name}: failed",
                trigger=trigger(bad),
                actions=notify("The run failed or crashed."),
            ),
            AutomationCore(
                name=f"{name}: stalled",
                trigger=trigger(
                    {PROGRESS, *_ENDED}, after={PROGRESS, _RUNNING}, within=60 * alerts.stall
                ),
                actions=notify(f"No progress was seen for {alerts.stall:g} minutes."),
            ),
        ]
    if alerts.cap is not None:
        cancelled: list[ActionTypes] = [CancelFlowRun()] if alerts.cancel else []
        consequence = " It is cancelled." if alerts.cancel else ""
        found.append(
            AutomationCore(
                name=f"{name}: over cap",
                trigger=trigger(_ENDED, after={_RUNNING}, within=3600 * alerts.cap),
                actions=notify(f"The run lasts longer than {alerts.cap:g} hours.{consequence}")
                + cancelled,
            )
        )
    return found


def _register_automation(client: SyncPrefectClient, automation: AutomationCore) -> str:
    there = client.read_automations_by_name(automation.name)
    if not there:
        client.create_automation(automation)
        return "new"

    decides = {"trigger", "actions"}
    if there[0].model_dump(include=decides) == automation.model_dump(include=decides):
        return "unchanged"  # Writing it again would reset the time that it has waited.
    client.update_automation(there[0].id, automation)
    return "changed"


def _notification_block_id(client: SyncPrefectClient, address: str, name: str) -> uuid.UUID:
    """Returns the id of the block that sends to an address.

    Args:
      client: client of the server.
      address: the address; or TYPE/NAME of a block that is there.
      name: name of the block that is made, or replaced, for an address.
    """
    scheme, separator, _ = address.partition("://")
    if not separator and _BLOCK.fullmatch(address):
        kind, _, known = address.partition("/")
        try:
            return client.read_block_document_by_name(known, kind).id
        except ObjectNotFound:
            raise ConfigError(
                f"--alert must be an address or a block of the server, got {address}, which it "
                f"does not have; see: prefect block ls."
            ) from None
    if scheme in ("mailto", "mailtos") or address.startswith("https://hooks.slack"):
        # Prefect has no block for plain mail; this one passes any address on to Apprise.
        block = SlackWebhook(url=SecretStr(address))
    elif scheme in ("http", "https"):
        block = CustomWebhookNotificationBlock.model_validate(
            {
                "name": name,
                "url": "{{url}}",
                "json_data": {"subject": "{{subject}}", "text": "{{body}}"},
                "secrets": {"url": address},
            }
        )
    else:
        raise ConfigError(
            "--alert must be https://, mailto://, mailtos:// or TYPE/NAME of a block of the "
            "server; what was given is not shown here."
        )
    try:
        return cast(uuid.UUID, block.save(name, overwrite=True))
    except PrefectHTTPStatusError as error:
        if error.response.status_code != 500:
            raise
        raise ConfigError(
            f"--alert cannot replace {name} on the server, which was encrypted with another key: "
            f"start the server with that key, or delete the block, whose id is in the server's log."
        ) from None
