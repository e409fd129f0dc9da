"""YAML as its version 1.2 has it, read and written.

    text      YAML 1.1, as PyYAML reads it    here
    010       8, an octal number              refused: 10, or '010' for a text
    1:30      90, a number to base 60         the text 1:30
    yes, on   true                            texts; true and false are the booleans
    1e-4      a text                          0.0001
    1_000     1000                            a text, which Python's `int` reads as 1000

A key that is there twice is refused, and so are texts that no file can hold and numbers of more
digits than Python prints.
"""

import re
from typing import Any

import yaml

_MAX_DIGITS = 100
"""Most characters of a whole number; of more than 4300 digits, Python prints none."""

NO_YAML = "not YAML that can be read"
"""Beginning of the message of an error in the syntax."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_INT, _FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
_ZERO_FIRST = re.compile(r"[-+]?0[0-9_]+$")

# Source: YAML 1.2.2, section 10.3.2 (core schema). The patterns of 1.1 that it has no more, such
# as dates, are texts. `<<` is of 1.1 and stays: studies share sections with it.
_CORE = (
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", "~nN\0"),
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    (_INT, r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+|[-+]?0[0-9_]+", "-+0123456789"),
    (
        _FLOAT,
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
    ("tag:yaml.org,2002:merge", r"<<", "<"),
)


class YamlError(ValueError):
    """A text is no YAML that can be read; the message says what it has instead.

    Attributes:
      line: line of the text, counted from 1; 0 if it is not known.
    """

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.line = line


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 (PyYAML's own attribute)

    def construct_scalar(self, node: Any) -> Any:
        text, line = super().construct_scalar(node), node.start_mark.line + 1
        if isinstance(text, str) and _SURROGATE.search(text):
            raise YamlError(f"a text must be of characters, got {text!r:.60}.", line)
        if node.tag == _INT and len(text) > _MAX_DIGITS:
            raise YamlError(f"a number has at most {_MAX_DIGITS} digits.", line)
        if node.tag == _INT and _ZERO_FIRST.match(text):
            raise YamlError(
                f"a number must not begin with 0, got {text}: write {int(text)}, or '{text}' for a "
                f"text.",
                line,
            )
        return text

    def construct_yaml_int(self, node: Any) -> int:
        text = self.construct_scalar(node)
        base = {"0o": 8, "0x": 16}.get(text[:2], 10)
        return int(text[2:] if base != 10 else text, base)

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        # Checked before `<<` is resolved, which may well repeat keys of the mapping.
        node = super().compose_mapping_node(anchor)
        keys: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in keys:
                    raise YamlError(
                        f"{key.value} is stated twice; keep one, or put both together.",
                        key.start_mark.line + 1,
                    )
                keys.add(key.value)
        return node


class _Dumper(yaml.SafeDumper):
    """Quotes the texts that readers of either version would take for something else."""


_Loader.add_constructor(_INT, _Loader.construct_yaml_int)
for _tag, _pattern, _first in _CORE:
    _compiled = re.compile(rf"(?:{_pattern})$")
    for _character in _first:
        _key = "" if _character == "\0" else _character
        _Loader.yaml_implicit_resolvers.setdefault(_key, []).append((_tag, _compiled))
    _Dumper.add_implicit_resolver(_tag, _compiled, ["" if c == "\0" else c for c in _first])


def load_yaml(text: str) -> Any:
    """Returns the value of a YAML 1.2 text, of plain types.

    Raises:
      YamlError: if it is none that can be read.
    """
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        reason = ", ".join(filter(None, (error.context, error.problem)))
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        raise YamlError(f"{NO_YAML}: {reason}.", line) from None
    except yaml.YAMLError as error:
        raise YamlError(f"{NO_YAML}: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise YamlError(f"{NO_YAML}: nested too deeply.") from None
    except (ValueError, AttributeError) as error:  # Of values with a tag, such as `!!int x`.
        if isinstance(error, YamlError):
            raise
        raise YamlError(f"{NO_YAML}: a value is none of its tag.") from None


def dump_yaml(value: Any, **options: Any) -> str:
    """Returns a plain value as a YAML text, which readers of versions 1.1 and 1.2 read alike.

    Args:
      value: the value.
      **options: options of `yaml.dump`.
    """
    return yaml.dump(value, Dumper=_Dumper, **options)
