"""The error of a lost worker, as opposed to errors that its own code raises."""


class RayWorkerLostError(RuntimeError):
    """The process that made a step died; its work is not committed and can be tried again."""
