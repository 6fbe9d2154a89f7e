"""The logger that a build speaks through: after `aotair.logger.setLevel(logging.DEBUG)` it says what passes do."""

import logging
import sys

logger = logging.getLogger("aotair")


class _Unheard(logging.Handler):
    """Writes to standard error what no other handler gets: who configures logging sees each line once."""

    def emit(self, record: logging.LogRecord) -> None:
        if self._is_heard():
            return
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except Exception:  # as every handler of `logging`: a line that cannot be written ends nothing
            self.handleError(record)

    def _is_heard(self) -> bool:
        """As `logging` itself goes from a logger to those above it."""
        here: logging.Logger | None = logger
        while here is not None:
            if any(handler is not self for handler in here.handlers):
                return True
            here = here.parent if here.propagate else None
        return False


_FORMAT = "[%(levelname)s] %(name)s %(asctime)s %(filename)s:%(lineno)d: %(message)s"
if not any(isinstance(handler, _Unheard) for handler in logger.handlers):
    _handler = _Unheard()
    _handler.setFormatter(logging.Formatter(_FORMAT))
    logger.addHandler(_handler)
