"""What befalls a worker, told apart from what its own code raises."""


class WorkerLost(RuntimeError):
    """The process that made a step died; its work is not committed and can be tried again."""
