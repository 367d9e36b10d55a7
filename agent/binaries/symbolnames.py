"""The symbols that a function's written name may stand for: C's own, C++'s and Rust's mangled ones (Itanium C++ ABI
5.1; Rust's legacy and v0 mangling). Pure.

A mangled name has the parts of a path in order, each with its length. Arguments are not parsed: functions that differ
only in those are identified by their mangled names.
"""

from __future__ import annotations

import re

#: Suffixes of functions whose arguments the compiler has changed, or of which it has split off a part.
CHANGED = re.compile(rb"\.(?:isra|constprop|part)\.\d+")
COLD = re.compile(rb"\.cold(?:\.\d+)?$")
_SPECIAL = {"(anonymous namespace)": "12_GLOBAL__N_1", "operator()": "cl", "{anonymous}": "12_GLOBAL__N_1"}
_BUILTIN = {
    "bool": "b",
    "char": "c",
    "signed char": "a",
    "unsigned char": "h",
    "short": "s",
    "unsigned short": "t",
    "int": "i",
    "unsigned int": "j",
    "unsigned": "j",
    "long": "l",
    "unsigned long": "m",
    "long long": "x",
    "unsigned long long": "y",
    "float": "f",
    "double": "d",
}
#: Of Rust: symbols outside of a path, and types that v0 writes as a letter.
_WORDS = frozenset(
    [
        "as",
        "impl",
        "for",
        "dyn",
        "mut",
        "const",
        "bool",
        "char",
        "str",
        "u8",
        "i8",
        "u16",
        "i16",
        "u32",
        "i32",
        "u64",
        "i64",
        "u128",
        "i128",
        "usize",
        "isize",
        "f32",
        "f64",
    ]
)
_HASH = rb"17h[0-9a-f]{16}E"
_V0_BETWEEN = rb"[A-Za-z0-9_]{0,80}?"
_TEMPLATE = rb"(?:I\w{0,900}?E)?"
_TAG = rb"(?:B\d+\w{1,40}?)?"
_SUFFIX = rb"(?:\.[\w.]{1,80})?"


def pattern(written: str, language: str) -> re.Pattern[bytes]:
    """Matches the symbols that a name may stand for, with a zero at the end, also with suffixes of compilers."""
    exact = re.escape(written.encode())
    forms = [exact]
    if language != "c" and not written.startswith(("_Z", "_R")):
        parts = path(written)
        if language == "c++" and parts:
            forms.append(_itanium(parts))
        if language == "rust" and parts and (names := _names(written)):
            forms += [rb"_ZN" + b"".join(map(_legacy, parts)) + _HASH, _v0(names)]
    return re.compile(rb"(?:" + rb"|".join(forms) + rb")" + _SUFFIX + rb"\0")


def path(written: str) -> list[str]:
    """``shop::Window<int>::inc(char const*) const`` -> shop, Window<int>, inc."""
    parts, depth, current = list[str](), 0, ""
    text = (
        re.sub(r"\boperator\(\)", "operator()", written)
        .replace("operator()", "\1")
        .replace("(anonymous namespace)", "\2")
    )
    for at, letter in enumerate(text):
        if letter == "(" and depth == 0 and current:
            break
        depth += (letter in "<([") - (letter in ">)]")
        if letter == ":" and depth == 0:
            if text[at - 1] == ":":
                parts.append(current)
                current = ""
        else:
            current += letter
    parts.append(current)
    if not parts[0].startswith("<"):
        parts[0] = parts[0].rpartition(" ")[2]  # a template's name includes its return type
    return [part.replace("\1", "operator()").replace("\2", "(anonymous namespace)") for part in parts if part]


def _sized(name: str) -> bytes:
    return f"{len(name.encode())}{name}".encode()


def _itanium(parts: list[str]) -> bytes:
    made = []
    for part in parts:
        name, template, arguments = part.partition("<")
        codes = [_BUILTIN.get(one.strip(), "") for one in arguments.removesuffix(">").split(",")]
        special = _SPECIAL.get(name)
        made.append(
            re.escape((special or "").encode() or _sized(name))
            + _TAG
            + (
                f"I{''.join(codes)}E".encode()
                if all(codes)
                else rb"I\w{0,900}?E"
                if template
                else _TEMPLATE
                if part is parts[-1]
                else b""
            )
        )
    if len(parts) == 1:
        return rb"_ZL?" + made[0] + rb"[A-Za-z]\w{0,900}"
    return rb"_ZN[rVKRO]{0,3}L?" + rb"L?".join(made) + rb"E\w{0,900}"


def _legacy(part: str) -> bytes:
    escaped = (
        part.replace("<", "_$LT$" if part.startswith("<") else "$LT$")
        .replace(">", "$GT$")
        .replace(" ", "$u20$")
        .replace("&", "$RF$")
        .replace("*", "$BP$")
        .replace("::", "..")
    )
    return re.escape(_sized(escaped))


def _names(written: str) -> list[str]:
    """The identifiers of a path, as in v0: a repeated one is written once, then as a back-reference."""
    names = [one for one in re.findall(r"\w+", written.partition("(")[0]) if one not in _WORDS]
    return [*dict.fromkeys(names[:-1]), *names[-1:]]


def _v0(names: list[str]) -> bytes:
    sized = [re.escape(f"{len(one.encode())}{'_' if one[0] in '0123456789_' else ''}{one}".encode()) for one in names]
    return rb"_R[A-Za-z0-9_]{1,60}?" + _V0_BETWEEN.join(sized) + rb"(?![0-9a-z_])\w{0,80}"


#: Prefixes of a path's part in v0: its kind, a crate's or name's number, back-references.
_BEFORE = {
    "_R": re.compile(r"(?:C?s[0-9A-Za-z]*_|B[0-9A-Za-z]*_|[A-Z][a-z]?){0,8}?(\d{1,3})_?"),
    "_Z": re.compile(r"L?(\d{1,3})"),
}


def plain(symbol: str) -> str:
    """The path in a mangled name; the symbol itself if there is none."""
    start = re.match(r"_ZN[rVKRO]*|_ZL?(?=\d)|_R", symbol)
    if start is None:
        return symbol
    parts, at, before = list[str](), start.end(), _BEFORE[symbol[:2]]
    while (number := before.match(symbol, at)) and len(parts) < 16:
        at = number.end() + int(number[1])
        parts.append(symbol[number.end() : at])
        if not symbol.startswith(("_ZN", "_R")):
            break
    if parts and re.fullmatch("h[0-9a-f]{16}", parts[-1]):
        parts.pop()
    return "::".join(parts) or symbol
