"""What a program meets that reads a value which will never be there."""


class Error(RuntimeError):
    """A primitive that failed, with the line of the program that wrote it.

    code: "invalid_argument", "not_found", "unavailable", "unimplemented", "aborted", ...
    message: what was wrong and what to do about it
    file, line: of the primitive, or of the use where the use is what is wrong; line 0: unknown
    """

    def __init__(self, status: int, code: str, message: str, file: str, line: int) -> None:
        super().__init__(message)
        self._status = status
        self.code = code
        self.message = message
        self.file = file
        self.line = line

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}: " if self.line else ""
        return f"{place}{self.code}: {self.message}"


class InvalidArgumentError(Error, ValueError):
    """The program's input is wrong. Also a ValueError."""


class NotFoundError(Error, KeyError):
    """No such variable, file or model. Also a KeyError."""


_CLASSES = {"invalid_argument": InvalidArgumentError, "not_found": NotFoundError}


def make_error(status: int, code: str, message: str, file: str, line: int) -> Error:
    return _CLASSES.get(code, Error)(status, code, message, file, line)
