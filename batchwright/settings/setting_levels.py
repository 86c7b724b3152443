"""Levels of importance of a setting: needed at the start, or used for tuning.

The settings reference is divided by level. A setting without a level is rarely needed.
"""

from pydantic.config import JsonDict

LEVEL = "level"
START: JsonDict = {LEVEL: "start"}
TUNING: JsonDict = {LEVEL: "tuning"}
MARKS = {"start": START, "tuning": TUNING}
