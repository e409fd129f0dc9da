"""Azure's blobs on the loopback for tests, with the faults of `tests.gcs`.

with Azure() as azure:
    azure.bucket("name")
    ...  # Clients with `azure.environment` in their environment.
"""

from tests.az.api import ACCOUNT, Api
from tests.gcs.server import GCS

_KEY = "dGVzdC1rZXktOTFhNw=="
"""Base64; whatever is signed with it is accepted."""


class Azure(GCS):
    """The server, from entering it as a context to leaving it; see `GCS` for the attributes."""

    scheme = "az"
    api: Api

    def __init__(self) -> None:
        super().__init__()
        self.api = Api(self.store)

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for clients."""
        return {
            "AZURE_STORAGE_ENDPOINT": f"{self.url}/{ACCOUNT}",
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": _KEY,
        }
