"""The steps that look for duplicates and contamination in a study's mixture."""

from collections.abc import Callable, Mapping

from prefect.futures import PrefectFuture

from flows.steps.task import Spec
from flows.study.config import StudyConfig
from infra.store.store import Artifact

Future = PrefectFuture[Artifact]


def screened(
    submit: Callable[[Spec, Mapping[str, Artifact | Future]], Future],
    config: StudyConfig,
    datasets: Mapping[str, Future],
) -> dict[str, Future]:
    """Returns the mixture's datasets as hygiene leaves them; none where none is asked for.

    Args:
      submit: starts a step on its inputs.
      config: the study.
      datasets: all its prepared datasets, by name.
    """
    if config.hygiene is None:
        return {}
    held_out = {f"{name}/eval": datasets[f"{name}/eval"] for name in config.eval_rows}
    return {
        source.name: submit(
            Spec(kind="screened", name=f"screen {source.name}", config=config.hygiene),
            {"dataset": datasets[source.name], **held_out},
        )
        for source in config.sources
    }
