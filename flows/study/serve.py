"""`parcel serve`: server and UI on loopback, and a runner for what is started there."""

import os
from pathlib import Path

from rich.console import Console

from infra.prefect.server import running_server
from infra.prefect.settings import apply


def serve(store: Path, port: int) -> None:
    """Serves until interrupted.

    Args:
      store: the store that runs started from the UI use, unless their form says another.
      port: of the server, on 127.0.0.1.
    """
    apply(store)
    console = Console(highlight=False, soft_wrap=True)
    console.print("starting Prefect …")
    with running_server(port) as api:
        os.environ["PREFECT_API_URL"] = api
        console.print(f"UI: {api.removesuffix('/api')}/v2  (store {store}); end with Ctrl-C")
        _run_deployments(store)


def _run_deployments(store: Path) -> None:
    from typing import Any, cast

    import pydantic
    from prefect import Flow
    from prefect import serve as serve_deployments
    from prefect.types.entrypoint import EntrypointType

    from flows.study.config import StudyConfig
    from flows.study.flow import study
    from flows.study.load import load

    demo = pydantic.TypeAdapter(StudyConfig).dump_python(load(), mode="json")
    deployment: Any = cast(Flow[..., Any], study).to_deployment(
        name="study",
        description="Raw data to results table. The form is filled with the demo study.",
        parameters={"config": demo, "store": str(store), "until": "report"},
        tags=["parcel"],
        entrypoint_type=EntrypointType.MODULE_PATH,
    )
    serve_deployments(deployment, print_starting_message=False)
