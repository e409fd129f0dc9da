"""Durations in words."""


def duration_text(seconds: float) -> str:
    """Returns a duration in words, as "8.3 s", "4 min 10 s" or "2 h 5 min"."""
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def time_left_text(seconds: float | None) -> str:
    """Returns the time left in words, as "5 min left"; "" where it is unknown.

    Args:
      seconds: the time left [s].
    """
    if seconds is None:
        return ""
    if seconds < 50:
        return f"{max(10, round(seconds, -1)):.0f} s left"
    if seconds < 5400:
        return f"{round(seconds / 60)} min left"
    return f"{seconds / 3600:.1f} h left"


def age_text(seconds: float) -> str:
    """Returns a time that has passed, roughly: "12 s", "3 min", "2 h 5 min", "4 d 3 h".

    Args:
      seconds: the time [s]; less than 0 counts as 0, since clocks of two machines differ a little.
    """
    seconds = max(seconds, 0)
    minutes, hours, days = (int(seconds // unit) for unit in (60, 3600, 86400))
    if days:
        return f"{days} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min" if minutes else f"{seconds:.0f} s"
