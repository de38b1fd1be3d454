"""The preconditions of requests, and the readers of query parameters."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from starlette.responses import Response

from outlast.localcloud.base.errors import ApiError
from outlast.localcloud.base.state import Entry

SESSION_QUERY = (
    "ifGenerationMatch",
    "ifGenerationNotMatch",
    "ifMetagenerationMatch",
    "ifMetagenerationNotMatch",
)


@dataclass(frozen=True)
class Preconditions:
    """The if… parameters of a request."""

    generation: int | None = None
    not_generation: int | None = None
    metageneration: int | None = None
    not_metageneration: int | None = None

    @classmethod
    def of(cls, query: Mapping[str, str], prefix: str = "if") -> "Preconditions":
        """Reads them from a query; `prefix` is `ifSource` for the source of a copy."""

        def number(name: str) -> int | None:
            return whole_number(query, f"{prefix}{name}")

        return cls(
            number("GenerationMatch"),
            number("GenerationNotMatch"),
            number("MetagenerationMatch"),
            number("MetagenerationNotMatch"),
        )

    def check(self, live: Entry | None, *, reading: bool = False) -> None:
        """Raises ApiError 412, or 304 if a reader already has the object. `live` is None for an
        absent object."""
        generation = int(live["generation"]) if live else 0
        metageneration = int(live["metageneration"]) if live else None
        if self.generation is not None and self.generation != generation:
            raise condition_not_met()
        if self.metageneration is not None and self.metageneration != metageneration:
            raise condition_not_met()
        same = self.not_generation is not None and self.not_generation == generation
        same |= self.not_metageneration is not None and self.not_metageneration == metageneration
        if same:
            raise NotModified() if reading else condition_not_met()


class NotModified(ApiError):
    """304: the reader's generation is the live one."""

    def __init__(self) -> None:
        super().__init__(304, "Not Modified", "notModified")

    def response(self, headers: Mapping[str, str] | None = None) -> Response:
        return Response(status_code=304, headers=headers)


def condition_not_met() -> ApiError:
    """The 412 of a failed precondition."""
    return ApiError(
        412,
        "At least one of the pre-conditions you specified did not hold.",
        "conditionNotMet",
    )


def whole_number(query: Mapping[str, str], name: str) -> int | None:
    """A whole number from the query; None if absent. Raises ApiError 400."""
    text = query.get(name)
    if text is None:
        return None
    if not re.fullmatch(r"-?[0-9]{1,19}", str(text)):
        raise ApiError(400, f"Invalid value for {name}: {text!r} is not a whole number", "invalid")
    return int(text)


def is_true(query: Mapping[str, str], name: str) -> bool:
    """Whether a parameter of the query is true."""
    return query.get(name, "").lower() in ("true", "1")
