"""`matchGlob` of a list: compiles patterns of names."""

import re

from outlast.localcloud.base.errors import ApiError

LONGEST = 1024


def compiled(glob: str) -> re.Pattern[str]:
    """Compiles a glob. `*` and `?` match within a folder, `**` across folders; `[a-z]`, `[!a-z]`
    and `{a,b}` work as in a shell, and a backslash escapes the next character. Raises ApiError 400
    if it is not valid."""
    if len(glob) > LONGEST:
        raise _invalid(glob, f"must have at most {LONGEST} characters")
    pattern, at, depth = "", 0, 0
    while at < len(glob):
        sign = glob[at]
        at += 1
        if sign == "*":
            whole = glob[at : at + 1] == "*"
            at += whole
            pattern += ".*" if whole else "[^/]*"
        elif sign == "?":
            pattern += "[^/]"
        elif sign == "[":
            signs, at = _class(glob, at)
            pattern += signs
        elif sign == "{":
            depth += 1
            pattern += "(?:"
        elif sign == "}" and depth:
            depth -= 1
            pattern += ")"
        elif sign == "," and depth:
            pattern += "|"
        elif sign == "\\":
            if at == len(glob):
                raise _invalid(glob, "ends with a backslash")
            pattern += re.escape(glob[at])
            at += 1
        else:
            pattern += re.escape(sign)
    if depth:
        raise _invalid(glob, "a { is not closed")
    return re.compile(pattern, re.DOTALL)


def _class(glob: str, at: int) -> tuple[str, int]:
    """The regex of the character class whose `[` is before `at`, and the index after it."""
    end = glob.find("]", at + 1)
    signs = glob[at:end]
    negated = signs[:1] in ("!", "^")
    signs = signs[negated:]
    if end < 0 or not signs:
        raise _invalid(glob, "a [ is not closed")
    made, index = "", 0
    while index < len(signs):
        first = last = signs[index]
        if signs[index + 1 : index + 2] == "-" and index + 2 < len(signs):
            last = signs[index + 2]
            index += 2
        if last < first:
            raise _invalid(glob, f"the range {first}-{last} is backwards")
        made += f"{re.escape(first)}-{re.escape(last)}" if last != first else re.escape(first)
        index += 1
    return f"(?!/)[{'^' if negated else ''}{made}]", end + 1


def _invalid(glob: str, rule: str) -> ApiError:
    return ApiError(400, f"Invalid matchGlob '{glob[:80]}': {rule}.", "invalid")
