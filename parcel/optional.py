"""Libraries that a notebook may have, and a run does without."""

from types import ModuleType

from infra.errors import ConfigError


def import_pandas(instead: str) -> ModuleType:
    """Returns pandas.

    Args:
      instead: what gives the same without it, for the error.

    Raises:
      ConfigError: if it is not installed.
    """
    try:
        import pandas
    except ImportError:
        raise ConfigError(
            f"to_pandas needs pandas, which is not installed; pip install pandas, or take "
            f"{instead}."
        ) from None
    return pandas
