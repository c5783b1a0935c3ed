"""What a secret is, by the name before it or by how it begins, and words without them: for records and for people.

A program gets its words as they are; what is recorded of them, shown or exported has `***` in place of a secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

_HIDDEN = "***"
_NAME = re.compile(
    r"pass(?:word|wd|phrase)$|secret$|token$|credentials?$|(?:api|access|private|secret|account)_?key(?:_id)?$"
    r"|(?:^|_)pat$|_pwd$"
)
_OF_A_TEXT = re.compile(  # token: a piece of a text, by its name, and no password
    r"(?:^|_)(?:[bes]os|pad|padding|unk|unknown|sep|cls|class|mask|special|start|begin|end|stop|first|last|next|random|prob|"
    r"image|audio|video|text|patch|pool|pooled|register|reg|dist|query|control|trigger|decoder|prompt|initializer|placeholder|"
    r"modifier|instance|concept|separator|split|newline|blank|space|word|char|lang|language|src|source|tgt|target|task|time|"
    r"response|instruction|by|per|each)_(?:\w{1,20}_)?token$"
)
# How keys look, whatever the name before them: of NGC, Hugging Face, GitHub, GitLab, AWS, OpenAI and its like, Slack.
# The lengths are shorter than theirs, and longer than what names as sk-learn-forest and hf_distilbert are made of.
_KEY = re.compile(
    r"\b(?:nvapi-|hf_(?=[A-Za-z0-9]{30})|gh[pousr]_(?=[A-Za-z0-9]{16})|github_pat_|glpat-|AKIA(?=[A-Z0-9]{12})"
    r"|sk-(?:(?:proj|svcacct|admin|ant|or)-(?=[\w-]{16})|(?=[A-Za-z0-9]{20}))|xox[bap]-)[\w-]{4,}"
)
_HEADER = re.compile(r"(?i)\b(authorization: *(?:\w{1,20} +)?|bearer +)[^\s'\"]+")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NO_SECRET = re.compile(r"[-+.\dEe,]{1,12}|true|false|null|none|[$<\[{].*", re.IGNORECASE | re.DOTALL)  # ${oc.env:X}
_PARTS = re.compile(r"(?:[^\s'\"]|'[^']*'|\"[^\"]*\")+|['\"]|\s+")
_ASSIGNED = re.compile(r"[-+~\w.@/]+")
_PAIR = re.compile(r"""((?<![\w-])(?P<name>[\w-]+)['"]?\s*:\s*)('[^']+'|"[^"]+"|[^\s'",{}\[\]]+)""")
_DEEPEST = 5  # command lines in quotes in a command line
_LINES = frozenset({"workload.command"})  # settings that are the line of a shell

_SERVER = re.compile(r"(--store=|HPCML_STORE=)?postgres\S*://")
_BEFORE_HOST = re.compile(r"(?<=://)([^:/@?]*):[^?]*@")  # to the last @: one in a password should be written %40
_IN_OPTIONS = re.compile(r"([?&](?:ssl)?password=)[^&]*")
_LOGIN = re.compile(r"(://[^\s:/@]*):[^\s/@]+@")


@lru_cache(maxsize=2000)  # of many runs they are the same
def is_secret_name(name: str) -> bool:
    """Whether what *name* stands for is a secret: a variable's name, an option's, or a setting's with its groups.

    >>> [is_secret_name(name) for name in ("WANDB_API_KEY", "--hf-token", "workload.env.PGPASSWORD", "apiKey")]
    [True, True, True, True]
    >>> [is_secret_name(name) for name in ("--tokenizer", "max_tokens", "pad_token", "--key", "PATH")]
    [False, False, False, False, False]
    """
    last = _HUMP.sub("_", name.rpartition(".")[2].lstrip("-+~")).replace("-", "_").lower()
    return _NAME.search(last) is not None and _OF_A_TEXT.search(last) is None


def holds_key(text: str) -> bool:
    """Whether *text* begins as the keys of a known service do."""
    return _KEY.match(text) is not None


def masked(words: Sequence[str]) -> list[str]:
    """Return the *words* of a command line with each secret as ``***``; ``${...}`` and numbers are none.

    >>> masked(["env", "HF_TOKEN=abc", "python", "t.py", "--api-key", "abc", "--lr", "0.1", "--token=abc"])
    ['env', 'HF_TOKEN=***', 'python', 't.py', '--api-key', '***', '--lr', '0.1', '--token=***']
    """
    return _masked_words(words, _DEEPEST)


def masked_line(text: str) -> str:
    """Return a command line that is one *text*, as a shell takes it, with each secret as ``***``.

    >>> masked_line("bash -c 'train --api-key  abc --lr 0.1'")
    "bash -c 'train --api-key  *** --lr 0.1'"
    """
    return _masked_line(text, _DEEPEST)


def masked_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return *settings*, by their dotted keys, with each secret as ``***``."""
    return {key: _masked_setting(key, value) for key, value in settings.items()}


def masked_json(value: Any, key: str = "") -> Any:  # noqa: ANN401 - JSON
    """Return what run.json holds, with each secret as ``***``."""
    if isinstance(value, dict):
        return {name: masked_json(one, f"{key}.{name}" if key else name) for name, one in value.items()}
    if isinstance(value, list) and not all(isinstance(one, str) for one in value):
        return [masked_json(one, key) for one in value]
    return _masked_setting(key.removeprefix("run."), value)


def _masked_setting(key: str, value: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, list):
        return masked(value) if all(isinstance(one, str) for one in value) else value
    if not isinstance(value, str):
        return value
    return masked_line(value) if key in _LINES else _hidden(value) if is_secret_name(key) else value


def without_password(text: str) -> str:
    """Return *text* with the passwords of URLs replaced by ``***``.

    >>> without_password("postgresql://me:secret@host/db"), without_password("see https://me:secret@host/")
    ('postgresql://me:***@host/db', 'see https://me:***@host/')
    """
    if _SERVER.match(text):
        return _IN_OPTIONS.sub(r"\1***", _BEFORE_HOST.sub(r"\1:***@", text))
    return _LOGIN.sub(r"\1:***@", text)


def _hidden(value: str) -> str:
    return value if not value or _NO_SECRET.fullmatch(value) else _HIDDEN


def _masked_words(words: Sequence[str], depth: int) -> list[str]:
    found, before = [], ""
    for word in words:
        is_asked_for = before.startswith("-") and "=" not in before and is_secret_name(before)
        found.append(_hidden(word) if is_asked_for and not word.startswith("-") else _masked_word(word, depth))
        before = word
    return found


def _masked_line(text: str, depth: int) -> str:
    parts = _PARTS.findall(text)
    words = iter(_masked_words([part for part in parts if not part.isspace()], depth - 1))
    return "".join(part if part.isspace() else next(words) for part in parts)


@lru_cache(maxsize=2000)  # as above
def _masked_word(word: str, depth: int) -> str:
    if _is_quoted(word):
        return f"{word[0]}{_masked_text(word[1:-1], depth)}{word[0]}"
    name, equals, value = word.partition("=")
    if not equals or not _ASSIGNED.fullmatch(name):
        return _masked_text(word, depth)
    quote = value[0] if _is_quoted(value) else ""
    inner = value[1:-1] if quote else value
    return f"{name}={quote}{_hidden(inner) if is_secret_name(name) else _masked_text(inner, depth)}{quote}"


def _is_quoted(text: str) -> bool:
    return len(text) > 1 and text[0] in "'\"" and text[-1] == text[0]


def _masked_text(text: str, depth: int) -> str:
    """Return *text* without secrets, which may be a command line in itself, *depth* times at most."""
    text = _HEADER.sub(rf"\1{_HIDDEN}", _KEY.sub(_HIDDEN, without_password(text)))
    if "{" in text:  # JSON, or a mapping of Hydra's
        text = _PAIR.sub(lambda pair: f"{pair[1]}{_HIDDEN}" if is_secret_name(pair["name"]) else pair[0], text)
    return _masked_line(text, depth) if depth and any(map(str.isspace, text)) else text
