"""An S3 on the loopback for tests, as atomic as the real one, with the faults of `tests.gcs`.

with S3() as s3:
    s3.bucket("name")
    ...  # Clients with `s3.environment` in their environment.
"""

from tests.gcs.server import GCS
from tests.s3.api import ACCESS_KEY, REGION, SECRET_KEY, Api


class S3(GCS):
    """The server, from entering it as a context to leaving it; see `GCS` for the attributes."""

    scheme = "s3"
    api: Api

    def __init__(self) -> None:
        super().__init__()
        self.api = Api(self.store)

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for clients."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": REGION,
        }
