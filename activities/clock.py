"""The clock an activity is given, so that tests own time."""

from collections.abc import Callable
from datetime import datetime

Clock = Callable[[], datetime]
