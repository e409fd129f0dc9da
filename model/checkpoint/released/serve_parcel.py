"""Serves this release with `transformers serve`: `python serve_parcel.py --port 8000`.

That server finds models in tables of transformers' own classes, which this file puts the release's
into. Its `--trust-remote-code` would do less, and let whoever reaches it run any code of the Hub.
"""

import json
import sys
from pathlib import Path

try:
    from fastapi.responses import JSONResponse
    from transformers import AutoConfig, AutoModelForMultimodalLM, AutoProcessor
    from transformers.cli.serving import server
    from transformers.cli.transformers import app
    from transformers.dynamic_module_utils import get_class_from_dynamic_module
    from transformers.models.auto import modeling_auto
except ImportError as error:
    sys.exit(f"serving needs `pip install 'transformers[serving]>=5.24'`: {error}")

FOLDER = Path(__file__).resolve().parent


def released_class(file, auto):
    """Returns the class that a file of the release names for one of the `Auto…` classes."""
    names = json.loads((FOLDER / file).read_text(encoding="utf-8"))["auto_map"]
    return get_class_from_dynamic_module(names[auto], str(FOLDER))


def build_server(*parts, build=server.build_server, **settings):
    """Returns transformers' server, which answers a wrong request by its line and status 400."""
    built = build(*parts, **settings)

    @built.exception_handler(ValueError)
    async def refuse(request, error):
        return JSONResponse({"error": {"message": str(error)}}, status_code=400)

    return built


if __name__ == "__main__":
    config = released_class("config.json", "AutoConfig")
    model = released_class("config.json", "AutoModelForImageTextToText")
    AutoConfig.register(config.model_type, config)
    AutoModelForMultimodalLM.register(config, model)
    # The server asks this table by name which class to load, and whether it takes images.
    modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES[config.model_type] = model.__name__
    AutoProcessor.register(config, released_class("processor_config.json", "AutoProcessor"))
    server.build_server = build_server
    app(["serve", str(FOLDER), *sys.argv[1:]])
