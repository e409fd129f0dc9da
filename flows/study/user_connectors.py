"""The check of users' connector classes, before anything runs."""

from flows.study.view import StudyView
from infra.errors import ConfigError
from model.connector.registry import KINDS


def check_user_connectors(base: StudyView) -> None:
    """Makes and traces each user's connector at the sizes of the study; computes nothing.

    Raises:
      ConfigError: if one breaks a rule that `model.connector.contract` checks without compiling.
    """
    # Variants of one connector are checked once.
    connectors = dict.fromkeys(map(base.connector_of, base.methods))
    if not (user_connectors := [connector for connector in connectors if connector not in KINDS]):
        return
    from model.connector.contract import check_shapes  # JAX comes with it, and with the class.
    from model.train.resolution import check_resolutions

    for view in base.resolutions:
        for method in user_connectors:
            try:
                check_shapes(view.model_of(method))
                if view is not base:
                    check_resolutions(base.model_of(method), view.model_of(method))
            except ValueError as error:
                raise ConfigError(
                    f"methods: at {view.model.vision.image_px} px {error}; `parcel model "
                    f"check` checks everything that a connector must do."
                ) from None
