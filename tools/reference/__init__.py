"""What the scripts in tools/ share: the engines that narrows is compared with, and the figures they are compared by."""
import pathlib

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent.parent
SHARED_DATA = REPOSITORY.parent / "shared" / "data"
DEFAULT_NARROWS = REPOSITORY / "build" / "release" / "narrows"


class ToolError(Exception):
    """An expected failure: its one line is what the user sees."""


def existing_file(path, what):
    path = pathlib.Path(path)
    if not path.is_file():
        raise ToolError(f"{path}: no such file ({what})")
    return path
