"""The storage the settings ask for."""

from batchwright.settings import Settings
from batchwright.storage.base import Storage
from batchwright.storage.local import LocalStorage

_CRASHED_AFTER_SECONDS = 86_400.0  # no writer takes that long between two writes


def open_storage(settings: Settings) -> Storage:
    """Creates the directory where there is none, and clears what crashed writers left in it.

    Raises:
        StorageUnavailable: neither is possible.
    """
    storage = LocalStorage(settings.storage_dir)
    storage.remove_leftovers(_CRASHED_AFTER_SECONDS)
    return storage
