"""Check that a repository of the Hugging Face hub can be reached, before a library loads it.

Without a network, the libraries transformers and datasets try again for half a minute per file.
"""

TIMEOUT_S = 10


def find_hub_problem(name: str, kind: str = "model") -> str | None:
    """Return in one line why a repository of the hub cannot be loaded, or None. Sends one request.

    With the environment variable HF_HUB_OFFLINE=1, the libraries use their caches only, and nothing is checked.

    Args:
        name: The name of the repository, such as distilbert/distilbert-base-uncased.
        kind: "model" or "dataset".

    Raises:
        ImportError: The library huggingface_hub is not installed.
    """
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    if constants.HF_HUB_OFFLINE:
        return None
    try:
        HfApi().repo_info(name, repo_type=kind, timeout=TIMEOUT_S)
    except GatedRepoError:
        return (
            f"{name} on the Hugging Face hub requires that you accept its terms and log in (`hf auth login`)"
        )
    except (RepositoryNotFoundError, HFValidationError):
        return f"{name} is neither a local folder nor a {kind} on the Hugging Face hub"
    except Exception as error:  # The HTTP library differs between versions of huggingface_hub.
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        return (
            f"{name} is neither a local folder nor in the local cache, and the Hugging Face hub cannot be reached "
            f"({reason})"
        )
    return None
