"""Levels that say how important a setting is: needed at the start, or for tuning.

They divide the settings reference. A setting without a level is rarely needed.
"""

from pydantic.config import JsonDict

LEVEL = "level"
START: JsonDict = {LEVEL: "start"}
TUNING: JsonDict = {LEVEL: "tuning"}
MARKS = {"start": START, "tuning": TUNING}
