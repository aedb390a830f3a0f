"""Download of checkpoints by name from the Hugging Face hub."""

from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

from inference_service.models.errors import CheckpointError

WANTED = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
"""File patterns to download: no code and no pickles. `*.model` are vocabularies of SentencePiece."""
_TIMEOUT_S = 10.0


def model_name(folder: Path) -> str:
    """Return the name of the checkpoint in a folder: its name on the hub if downloaded, or else the
    folder's.
    """
    folder = folder.resolve()
    if folder.parent.name == "snapshots":
        return folder.parent.parent.name.rpartition("--")[2]
    return folder.name


def fetch(name: str) -> Path:
    """Return the folder with the checkpoint `owner/name`, from the hub or an earlier download.

    Raises `CheckpointError` if there is no such checkpoint, or the hub cannot be reached.
    """
    try:
        return Path(snapshot_download(name, allow_patterns=WANTED, etag_timeout=_TIMEOUT_S))
    except LocalEntryNotFoundError:
        problem = "the Hugging Face hub cannot be reached, and no earlier download exists"
    except HfHubHTTPError as error:
        problem = f"the Hugging Face hub refuses it ({error.response.status_code})"
    except (OSError, ValueError) as error:
        problem = f"it cannot be downloaded ({error})"
    raise CheckpointError(
        f"{name!r} is no folder here, and {problem}. Download the checkpoint where the hub can be reached, "
        "and give the path of its folder."
    )
