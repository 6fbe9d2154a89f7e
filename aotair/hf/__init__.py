"""What talks to Hugging Face's libraries: it stands beside the line, and nothing on the line imports it."""

import contextlib
import importlib
import logging

_disabled = logging.root.manager.disable
logging.disable(logging.WARNING)  # libraries that transformers looks for say of themselves what they lack
try:
    with contextlib.suppress(ImportError):  # who needs it says so
        importlib.import_module("transformers.modeling_utils")
finally:
    logging.disable(_disabled)
