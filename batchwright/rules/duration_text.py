"""Convert durations to text for people."""


def duration_text(seconds: float) -> str:
    """Return a duration as text, such as `4 min` or `3 h 20 min`; in seconds if it is under 2 minutes."""
    if seconds < 120:
        return f"{round(seconds)} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
