"""The levels of settings: needed to start Batchwright, or used to tune it.

The reference documentation of the settings has a section for each level. A setting without a level is rarely
needed.
"""

from pydantic.config import JsonDict

LEVEL = "level"
START: JsonDict = {LEVEL: "start"}
TUNING: JsonDict = {LEVEL: "tuning"}
MARKS = {"start": START, "tuning": TUNING}
