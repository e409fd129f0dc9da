"""Redacts credentials in text: what is logged, recorded or shown is kept and copied.

A credential is known in four ways:

    by the name before it      password=x   --token x   "api_key": "x"   Authorization: Bearer x
    by its own form            https://me:x@host   hf_x   AKIAx   -----BEGIN PRIVATE KEY-----
    by both                    key=hT4z…: a name of this field, too, and a value drawn at random
    by its value               one that a config of this process, or its environment, names so

Percent-encoded words are read decoded. What a name has for its value may be quoted, a list, the
rest of a line of YAML or of a header, the lines below it, or an entry of its own beside the name's.
"""

import functools
import os
import re
import urllib.parse

REDACTED = "[redacted]"

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")

_SECRET = re.compile(
    r"_(?:"
    # Also glued to what comes before: PGPASSWORD, hftoken, dbpasswd.
    r"[a-z\d]*(?:passwords?|passwd|passcodes?|passphrases?|secrets?|credentials?|apikeys?"
    r"|sess(?:ion)?_?ids?)"
    r"|pwd?|creds?|bearer|cookies?|jwt|netrc|webhooks?|dsn|authorization|pat"
    r"|(?:basic_|http_|proxy_)?auth(?:_string|_header)?"
    r"|(?:smtp|db|database|sql|pg|postgres|redis|mongo|mail|email|imap|ftp|user|root|admin|login"
    r"|http|proxy|basic|ldap|rabbitmq|ssh|sudo|keystore|truststore|store|service)_?pass"
    # Other keys of this field are of artifacts, caches and draws.
    r"|(?:api|access|private|account|secret|shared|signing|encryption|decryption|ssh|openai|wandb"
    r"|storage|service|master|auth|hmac|aes|rsa|deploy|client|subscription|consumer|license)_?keys?"
    r"|(?:access|auth|api|bearer|refresh|session|id|hf|hub|github|gh|gitlab|slack|bot|user|login"
    r"|wandb|security|sas|deploy|personal|service|client)_?tok(?:en)?s?"
    r")_"
)
"""Names of secrets, in words between underscores."""
_OF_SECRET = re.compile(
    r"_(?:files?|paths?|stdin|names?|env|lengths?|types?|modes?|methods?|schemes?"
    r"|policy|expir(?:y|es))_$"
)
"""Ends of names of what is no secret itself, such as the file that holds one."""

_TOKEN = re.compile(r"_([a-z\d]*?)_?token_$")
_TEXT_TOKEN = re.compile(
    r"begin|bos|class|cls|current|each|end|eos|extra|first|image|last|mask|max|min|new|newline|next"
    r"|num|one|pad|per|query|register|sep|soft|special|start|stop|text|unk|video|vision|visual"
    r"|vocab|word"
)
"""Words before "token" that name a piece of text or of an image."""

_AMBIGUOUS = re.compile(r"_(?:keys?|tokens|pass|tok|sig|signature|otp)_$")
"""Ends of names that are a secret's only if the value is drawn at random."""
_SIGNED = re.compile(r"_(?:sig|signature|credential|jwt|sas)_$")
"""Ends of the names of what lets the holder of an address in, where it is signed."""
_DRAWN = re.compile(
    r"(?=[^a-z\s]*[a-z])(?=[^A-Z\s]*[A-Z])(?=[^\d\s]*\d)[A-Za-z\d+/_=.~%-]{8,}", re.ASCII
)
"""A value with small letters, capitals and digits: no digest, number or word."""

_TOKENS = (
    r"hf_[A-Za-z\d]{20,}|api_org_[A-Za-z\d]{20,}",  # Hugging Face
    r"gh[pousr]_[A-Za-z\d]{20,}|github_pat_\w{20,}",
    r"gl(?:pat|ptt|dt|rt|cbt)-[\w-]{16,}",  # GitLab
    r"xox[a-z]-[\w-]{10,}|xapp-[\w-]{10,}",  # Slack
    r"wandb_v\d_\w{20,}|local-[\da-f]{40}",  # Weights & Biases
    r"sk[-_][\w-]{0,40}?[A-Za-z\d]{16,}[\w-]*|rk_live_\w{16,}",  # OpenAI, Anthropic, Stripe, …
    r"nvapi-[\w-]{20,}|gsk_[A-Za-z\d]{20,}|r8_[A-Za-z\d]{20,}",  # NVIDIA, Groq, Replicate
    r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z\d]{16}",  # AWS
    r"AIza[\w-]{35}|ya29\.[\w.-]{16,}|GOCSPX-[\w-]{16,}|1//0[\w-]{30,}",  # Google
    r"eyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)*",  # JSON web tokens
    r"dckr_(?:pat|oat)_[\w-]{20,}|npm_[A-Za-z\d]{30,}|pypi-[\w-]{30,}",
    r"hv[sbr]\.[\w-]{20,}|pnu_[A-Za-z\d]{20,}|dapi[\da-f]{32}",  # Vault, Prefect, Databricks
    r"ATATT[\w=-]{20,}|shp(?:at|ca|pa|ss)_[\da-fA-F]{20,}",  # Atlassian, Shopify
    r"SG\.[\w-]{16,}\.[\w-]{16,}|dop_v1_[\da-f]{30,}",  # SendGrid, DigitalOcean
    r"\d{8,10}:AA[\w-]{30,}",  # Telegram
)
"""Tokens that say whose they are."""

_SCHEME = r"((?<![A-Za-z\d+.-])[A-Za-z][A-Za-z\d+.-]*+://)"
_FORMS = [
    (word, re.compile(pattern, re.DOTALL), replacement)
    for word, pattern, replacement in (
        (
            "private key",
            r"-----BEGIN (?:[A-Z\d]+ )*PRIVATE KEY(?: BLOCK)?-----"
            r".*?(?:-----END [A-Z\d ]+-----|\Z)",
            REDACTED,
        ),
        # Name and password of an address; a password may hold "@" and "/". Before
        # tokens by their form, one of which may be the name.
        ("@", rf"{_SCHEME}[^\s/?#\"'<>`]{{1,500}}@", rf"\1{REDACTED}@"),
        (
            "@",
            rf"{_SCHEME}[^\s/?#@:\[\"'<>`]{{0,200}}:(?!\d+(?:[/?#]|\Z))[^\s\"'<>`]{{1,500}}@(?=[\w\[])",
            rf"\1{REDACTED}@",
        ),
        # Addresses whose path is the secret.
        (
            "//",
            r"(//(?:hooks\.slack\.com/(?:services|workflows|triggers)"
            r"|(?:ptb\.|canary\.)?discord(?:app)?\.com/api/webhooks"
            r"|[\w.-]+\.webhook\.office\.com|api\.telegram\.org|chat\.googleapis\.com/v1/spaces"
            r"|hooks\.zapier\.com/hooks)/)[^\s\"'<>`]+",
            rf"\1{REDACTED}",
        ),
        ("", rf"(?<![A-Za-z\d])(?:{'|'.join(_TOKENS)})", REDACTED),
        (
            "@",
            r"(?<![\w.+/@-])[\w.+-]+:[^\s@/:\"'<>`]{3,}@(?!sha\d)(?=[\w-]+[.:/])",
            f"{REDACTED}@",
        ),
        ("bearer", r"(?i)(\bbearer\s+)(?=[\w.~+/-]*\d)[\w.~+/-]{6,}=*", rf"\1{REDACTED}"),
        (
            "basic",
            rf"(\b[Bb]asic\s+)(?:[A-Za-z\d+/]{{4,}}={{1,2}}|{_DRAWN.pattern})",
            rf"\1{REDACTED}",
        ),
        # In a sentence: invalid password 'x'.
        (
            "",
            r"((?i:\b(?:password|passphrase|token|secret|api[ _-]?key|login)\s+(?:is\s+|was\s+)?)"
            rf"[\"']?){_DRAWN.pattern}",
            rf"\1{REDACTED}",
        ),
        ("login", r"(\blogin\s+\S+\s+password\s+)\S+", rf"\1{REDACTED}"),
        # The flags of programs that take a password without saying so.
        (
            "-u",
            r"((?<![\w-])(?:-[uU]|--(?:proxy-)?user)(?:[ \t]+|=|[\"']\s*,\s*)[\"']?)"
            r"[^\s:\"']+:(?!\d+(?:[\s\"']|\Z))[^\s\"']+",
            rf"\1{REDACTED}",
        ),
        (
            "-p",
            r"(\b(?:mysql\w*|mariadb[\w-]*)\b[^\n|;]{0,200}?[\s\"']-p)[^\s\"']+",
            rf"\1{REDACTED}",
        ),
        (
            "curl",
            r"(\bcurl\b[^\n|;]{0,200}?\s-[fgikLsSv]{0,6}u)[^\s:\"']+:(?!\d+(?:[\s\"']|\Z))[^\s\"']+",
            rf"\1{REDACTED}",
        ),
        ("docker login", r"(\bdocker login\b[^\n|;]{0,200}?\s-p[ \t]*)[^\s\"']+", rf"\1{REDACTED}"),
        ("sshpass", r"(\bsshpass[\s\"',]+-p[\s\"',]*)[^\s\"']+", rf"\1{REDACTED}"),
        ("redis-cli", r"(\bredis-cli\b[^\n|;]{0,200}?\s-a\s+)\S+", rf"\1{REDACTED}"),
    )
]
"""Word in small letters without which a text has nothing of this form, form, and replacement.

Most texts have none of the words, and to look for one costs a hundredth of a search by the form.
"""

_NAME = r"(?<![\w.-])(?P<name>-{0,2}[A-Za-z_][\w.-]*+)"
_SETTING = re.compile(
    rf"{_NAME}(?P<sign>\\*[\"'`]?(?:[ \t]++(?:is|was))?[ \t]*(?:=>|:=|=(?!=)|:(?!//))[ \t]*"
    # A flag or a header, and its value: an entry each of a list that is shown.
    r"|\\*[\"'][ \t]*,[ \t]*(?=b?\\*[\"'])|>(?=\w|[^<\n]{0,2000}</)"
    # headers["x"] = "x"; and as programs ask for it.
    r"|\\*[\"']\][ \t]*=[ \t]*(?=[bf]?\\*[\"'])|[ \t]++for[ \t][^\n]{1,80}?:[ \t]+(?![/~])|[ \t]+)"
)
_NAMED = re.compile(
    r"\b(?:name|key)[\\\"']*[ \t]*[:=][ \t]*[\\\"']*([A-Za-z_][\w.-]*)[\\\"']*[\s,;]*[\\\"']*\Z",
    re.IGNORECASE,
)
"""What stands before the value where name and value have an entry each: `name: X, value: x`."""
_PAIR_START = re.compile(r"[(\[]b?\\*[\"']\Z")
_LINE_START = re.compile(r"[ \t]*(?:- )?[\"']?\Z")
_QUOTED = re.compile(r"b?(?:\"(?:\\.|[^\"\\])*+(?:\"|\Z)|'(?:\\.|[^'\\])*+(?:'|\Z))", re.DOTALL)
_QUOTED_WITHIN = re.compile(r"(\\+[\"']).*?(?:\1|\Z)", re.DOTALL)
_XML_TEXT = re.compile(r"[^<\n]{0,2000}+(?=<)|[^\s<]*")
_BLOCK = re.compile(r"(?:[|>][-+\d]*)?[ \t]*\n")
_HEADER = re.compile(r"_(?:authorization|cookies?)_")
_ARTICLE = re.compile(r"(?i)\b(?:an?|the|no|any|its|their|your|this|that|own)[ \t]+\Z")
_PROSE = re.compile(r"[a-z]+[,.]?[ \t]")
_LAST_WORD = re.compile(r"[a-z]+(?=[ \t]+\Z)")
_COUNT = re.compile(r"[ \t]*\d{1,6}(?![\w-])")
_CODE = re.compile(
    r"(?:str|int|bytes|bool)\b|[a-z_]+(?:\.[a-z_]+)+[(\[]|(?:Sequence|Mapping|dict|list)\["
)
_PLAIN = re.compile(
    r"(?:None|null|true|false|~|@FILE|\.{3}|…|\*+|\$\w+|\$\{[^}]*\}|\[redacted\])?[.,;:)\]}]*", re.I
)
"""Values that hide nothing: none, or a variable that holds it."""
_SCHEME_OF_HEADER = re.compile(r"(?:Bearer|Basic|Digest|Token)[ \t]+")
_NO_VALUE = re.compile(
    r"(?:--?[a-z][a-z-]*(?=[=\s]|\Z)|(?:must|needs|takes|is|was|has|holds|names|cannot|or|and)\b)"
)
"""What follows a flag and is no value of it: another flag, or the rest of a sentence about it."""
_BARE_END = re.compile(r"[\s\"'`<>]|[;,&](?=[ \t]*[A-Za-z][\w.-]*[ \t]*=)")
"""End of a value without quotes: what is between words, or the sign before the next setting."""
_DRAWN_LOOK = 512
"""Beginning of a value by which it is known whether it was drawn at random [characters]."""
_WORD = re.compile(r"[^\s\"'<>`]+")
_ENCODED = re.compile(r"%[\dA-Fa-f]{2}")


_known: set[str] = set()
"""Credentials that this process was given: `remember_secret`."""
_TELLING = re.compile(r"(?=.*[^a-z]).{6,}|.{16,}", re.DOTALL)
"""A value that is not a word of ordinary text, such as "basic"."""


def remember_secret(value: str) -> None:
    """Has a credential redacted in all that this process writes from now on.

    Of "name:password" and "Bearer token" the last part, too. A short word stays known by its name
    alone.
    """
    for secret in (value, value.partition(":")[2], value.rpartition(" ")[2]):
        if _TELLING.fullmatch(secret) and not secret.startswith(("/", "~", REDACTED)):
            _known.add(secret)


@functools.cache
def _remember_environment() -> None:
    for name, value in os.environ.items():
        if is_secret(name):
            remember_secret(value)


@functools.lru_cache(4096)
def is_secret(name: str) -> bool:
    """Returns whether a name is one of credentials: `hf_token` is, `num_tokens` is not."""
    words = _setting_name_words(name)
    if _OF_SECRET.search(words):
        return False
    token = _TOKEN.search(words)
    is_token = token is not None and not _TEXT_TOKEN.fullmatch(token[1])
    return is_token or _SECRET.search(words) is not None


def is_secret_value(name: str, value: str) -> bool:
    """Returns whether a value is a credential whose name alone does not tell: `key: hT4z…`."""
    return bool(_AMBIGUOUS.search(_setting_name_words(name)) and _DRAWN.fullmatch(value))


def redact_text(text: str) -> str:
    """Returns a text with all that looks like a credential redacted; idempotent.

    "https://me:x@host/?access_token=x"    -> "https://[redacted]@host/?access_token=[redacted]"
    "--password x --tokenizer t"           -> "--password [redacted] --tokenizer t"
    "visual tokens: 64, key=stage1-3f9a"   -> the same
    """
    # Again, until nothing changes: what was decoded may have a form that it had not.
    for _ in range(4):
        before, text = text, _redact_once(text)
        if "%" in text:  # Else no word is encoded, and words are many.
            text = _WORD.sub(_redact_encoded, text)
        if text == before:
            break
    # Last: one that is the beginning of another would leave the other's end.
    _remember_environment()
    for secret in sorted(_known, key=len, reverse=True):
        text = text.replace(secret, REDACTED)
    return text


@functools.lru_cache(4096)
def _setting_name_words(name: str) -> str:
    return f"_{'_'.join(_WORDS.findall(name)).lower()}_"


def _redact_encoded(match: re.Match[str]) -> str:
    if not _ENCODED.search(match[0]):
        return match[0]
    decoded = match[0]
    for _ in range(3):  # An address within one within one is encoded as often.
        decoded = urllib.parse.unquote(decoded)
        if (redacted := _redact_once(decoded)) != decoded:
            return redacted
    return match[0]


def _redact_once(text: str) -> str:
    words = text.lower()
    for word, pattern, replacement in _FORMS:
        if word in words:
            text = pattern.sub(replacement, text)
    return _redact_settings(text)


def _redact_settings(text: str) -> str:
    """Redacts the values whose names are a secret's."""
    parts, done = [], 0
    at = 0
    while match := _SETTING.search(text, at):
        at = match.end("name")
        name, sign = _name_of_value(text, match), match["sign"]
        is_flag = name.startswith("-")
        is_query = text[match.start() - 1 : match.start()] in ("?", "&")
        known = is_secret(name) or (is_query and _SIGNED.search(_setting_name_words(name)))
        if not known and not _AMBIGUOUS.search(_setting_name_words(name)):
            continue
        if not known and text.startswith(("[", "{", "("), match.end()):
            continue  # A value drawn at random has none.
        if not is_flag and _is_prose(text, match):
            continue
        # Many names of this sort in a row do not each have all the rest looked at.
        stop = len(text) if known else min(match.end() + _DRAWN_LOOK, len(text))
        end = _value_end(text, match, stop)
        # A word before another is text, and one quoted before another may be of any list.
        is_header = _HEADER.search(_setting_name_words(name)) and not sign.isspace()
        is_pair = known and _is_credential_pair(text, match, end)
        if not sign.strip(" \t\\\"'`,") and not (is_flag or is_header or is_pair):
            continue
        value = text[match.end() : end]
        if not known and not is_secret_value(name, value.strip("\\\"'")):
            continue
        if end == stop:
            end = _value_end(text, match, len(text))
            value = text[match.end() : end]
        if not is_flag and _is_code(name, value):
            continue
        if _PLAIN.fullmatch(value) or (is_flag and sign.isspace() and _NO_VALUE.match(value)):
            continue
        quote = re.match(r"b?\\*[\"']", value)
        opened = quote[0] if quote else ""
        closed = opened.lstrip("b") if quote and value.endswith(opened.lstrip("b")) else ""
        parts += [text[done : match.end()], opened, REDACTED, closed]
        done = at = max(end, match.end())
    return "".join([*parts, text[done:]])


def _name_of_value(text: str, match: re.Match[str]) -> str:
    """Returns the name of what a setting sets, which "value" has before it: `name: X, value: x`."""
    if match["name"].lower() == "value":
        named = _NAMED.search(text[max(match.start() - 200, 0) : match.start()])
        return named[1] if named else match["name"]
    return match["name"]


def _is_credential_pair(text: str, match: re.Match[str], end: int) -> bool:
    """Returns whether a name and its value are all that is between brackets: ("password", "x")."""
    before = text[max(match.start() - 4, 0) : match.start()]
    return _PAIR_START.search(before) is not None and text[end : end + 1] in (")", "]")


def _is_prose(text: str, match: re.Match[str]) -> bool:
    """Returns whether a name is a word of a sentence: "it has no password: run it alone"."""
    before = text[max(match.start() - 20, 0) : match.start()]
    if _TOKEN.search(_setting_name_words(match["name"])):  # "The class token: 64", or "token 17".
        word = _LAST_WORD.search(before)
        is_count = _COUNT.match(text, match.end()) is not None
        return is_count or (word is not None and _TEXT_TOKEN.fullmatch(word[0]) is not None)
    is_clause = before.endswith("/") or _ARTICLE.search(before) is not None
    return is_clause and _PROSE.match(text, match.end()) is not None


def _is_code(name: str, value: str) -> bool:
    """Returns whether a value is a piece of a program, as tracebacks show: `token=token`."""
    return value.rstrip(",)") == name or _CODE.match(value) is not None


def _value_end(text: str, match: re.Match[str], stop: int) -> int:
    """Returns where the value of a setting ends; `stop` if it does not before."""
    start, sign = match.end(), match["sign"].strip()
    # The line as far as it is of interest: one may be as long as a file.
    before = text[max(match.start() - 200, 0) : match.start()].rpartition("\n")[2]
    starts_line = _LINE_START.fullmatch(before) is not None
    if sign == ">" and (found := _XML_TEXT.match(text, start, stop)):
        return found.end()
    for quoted in (_QUOTED, _QUOTED_WITHIN):
        if found := quoted.match(text, start, stop):
            return found.end()
    if sign.endswith(":") and _BLOCK.match(text, start, stop):
        # The lines below it that are further in.
        inside = len(before) - len(before.lstrip(" \t-"))
        lines = re.compile(rf"[^\n]*(?:\n(?:[ \t]*(?=\n|\Z)|[ \t]{{{inside + 1},}}[^\n]*))*")
        found = lines.match(text, start, stop)
        return found.end() if found else start
    if text[start : start + 1] in ("[", "{", "("):
        return _bracket_end(text, start)
    if _HEADER.search(_setting_name_words(match["name"])):
        found = re.compile(r"[^\n\"'`]*").match(text, start, stop)
        return found.end() if found else start
    if sign.endswith(":") and starts_line:
        line_end = text.find("\n", start, stop)
        line = text[start : line_end if line_end >= 0 else stop]
        return start + len(line.rstrip(" \t,\"'"))
    # Of a connection string up to the next field, with the spaces in it.
    field = re.compile(r"[^;=\n\"']{0,500}+(?=;[ \t]*[A-Za-z][\w ]*=)").match(text, start, stop)
    if field and field[0].strip():
        return field.end()
    if before.rstrip().endswith(";") and sign == "=":
        field = re.compile(r"[^;\n\"']*").match(text, start, stop)
        return field.end() if field else start
    scheme = _SCHEME_OF_HEADER.match(text, start, stop)
    begin = scheme.end() if scheme else start
    found = _BARE_END.search(text, begin, stop)
    value = text[start : found.start() if found else stop]
    if len(value) == begin - start:
        return start
    if text[match.start() - 1 : match.start()] in ("?", "&"):
        value = re.split(r"[&#]", value, maxsplit=1)[0]
    return start + len(value.rstrip(",;)]}").removesuffix("\\n"))


def _bracket_end(text: str, start: int) -> int:
    """Returns where the bracket closes that opens here; the end of the text if it does not."""
    depth = 0
    for place in range(start, len(text)):
        if text[place] in "[{(":
            depth += 1
        elif text[place] in "]})":
            depth -= 1
            if depth == 0:
                return place + 1
    return len(text)
