"""Documents in: a folder, a file or a table as items with their text."""

from workhorse.batch.documents.folder import Skipped
from workhorse.batch.documents.read import read_input

__all__ = ["Skipped", "read_input"]
