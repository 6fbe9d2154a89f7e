"""From messages to token ids and back, with the files that travel with an artifact: tokenizer, template, end tokens."""

import datetime
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from aotair_runtime.artifact.companions import companions, read_companion
from aotair_runtime.errors import AotairError
from aotair_runtime.format.schema import Program

from .sampling import Sampling

Message = dict[str, str]  # role: system, user or assistant; content
_NEEDED = "tokenizer.json"
# They say for a training which part of the text is the assistant's, and write nothing.
_MARKS = re.compile(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}")


class Tokenizer:
    """The tokenizer of the artifact at `path`. Raises AotairError where it has none."""

    def __init__(self, path: Path, program: Program):
        try:
            import jinja2  # noqa: F401  templates are
            import tokenizers
        except ImportError as error:
            raise AotairError(f"chat needs {error.name}", fix="pip install 'aotair[hf]'") from error
        self._path, self._program = path, program
        if _NEEDED not in companions(program):
            raise AotairError(
                "the artifact has no tokenizer",
                where=str(path),
                expected=f"{_NEEDED} among the files that travel with it",
                got=", ".join(companions(program)) or "no files",
                fix="build it from a checkpoint (model.pretrained), or name the file in the recipe's files",
            )
        try:
            self._tokens = tokenizers.Tokenizer.from_str(read_companion(path, program, _NEEDED).decode("utf-8"))
        except AotairError:
            raise
        except Exception as error:  # whatever its Rust code makes of the file
            raise AotairError(f"the tokenizer cannot be read: {error}", where=str(path)) from error
        self._config = self.json("tokenizer_config.json")
        self.generation = self.json("generation_config.json")
        self._template = self._read_template()
        self.ends = frozenset(self._end_tokens())

    def json(self, name: str) -> dict[str, Any]:
        """What that file says; nothing where there is none. Raises AotairError where it is no JSON object."""
        if name not in companions(self._program):
            return {}
        try:
            found = json.loads(self._text(name))
        except (ValueError, RecursionError) as error:
            raise AotairError(f"{name} is not JSON: {error}", where=str(self._path)) from error
        if not isinstance(found, dict):
            raise AotairError(f"{name} holds no JSON object", where=str(self._path), got=type(found).__name__)
        return found

    def _text(self, name: str) -> str:
        try:
            return read_companion(self._path, self._program, name).decode("utf-8")
        except UnicodeDecodeError as error:
            raise AotairError(f"{name} is no text in UTF-8: {error}", where=str(self._path)) from error

    def sampling(self, **given: Any) -> Sampling:
        """How to choose tokens: as `given`, else as the model's generation_config.json says, else the likeliest."""
        said = self.generation if self.generation.get("do_sample") else {}
        names = ("temperature", "top_p", "top_k")
        known = {name: said[name] for name in names if isinstance(said.get(name), (int, float))}
        if said:
            known = {"temperature": 1.0, **known}
        chosen = known | {name: value for name, value in given.items() if value is not None}
        if "temperature" not in chosen and {"top_p", "top_k"} & set(chosen):
            chosen["temperature"] = 1.0
        return Sampling(**chosen)

    def encode(self, messages: Sequence[Message]) -> list[int]:
        """The ids of a conversation, up to where the assistant is to speak."""
        if self._template is None:
            text = "\n".join(message["content"] for message in messages)
            return list(self._tokens.encode(text).ids)
        return list(self._tokens.encode(self._rendered(messages), add_special_tokens=False).ids)

    def pieces(self, ids: Iterator[int]) -> Iterator[str]:
        """The text of tokens as they come; bytes of a letter that is not complete yet wait for the rest."""
        seen: list[int] = []
        told = ""
        for token in ids:
            seen.append(token)
            text = self._tokens.decode(seen)
            if not text.endswith("\ufffd"):
                yield text[len(told) :]
                told = text
        rest = self._tokens.decode(seen)[len(told) :] if seen else ""
        if rest:
            yield rest

    def _rendered(self, messages: Sequence[Message]) -> str:
        import jinja2

        special = {
            name: value["content"] if isinstance(value, dict) else value
            for name, value in self._config.items()
            if name.endswith("_token") and (isinstance(value, str) or (isinstance(value, dict) and "content" in value))
        }
        try:
            text: str = self._template.render(messages=list(messages), add_generation_prompt=True, **special)
        except (jinja2.TemplateError, TypeError, ValueError, RecursionError) as error:
            raise AotairError(f"the chat template refuses the conversation: {error}", where=str(self._path)) from error
        return text

    def _read_template(self) -> Any:
        """The chat template, compiled; None where the model has none: it continues plain text."""
        import jinja2
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        text = self.json("chat_template.json").get("chat_template", self._config.get("chat_template"))
        if "chat_template.jinja" in companions(self._program):
            text = self._text("chat_template.jinja")
        if isinstance(text, list):  # several by name
            text = next((one.get("template") for one in text if one.get("name") == "default"), None)
        if not isinstance(text, str):
            return None
        # Another's code, of which the sandbox lets nothing out.
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _json_text
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
        try:
            return environment.from_string(_MARKS.sub(_as_condition, text))
        except jinja2.TemplateError as error:
            raise AotairError(f"the chat template cannot be read: {error}", where=str(self._path)) from error

    def _end_tokens(self) -> Iterator[int]:
        for source in (self.generation, self._config, self.json("config.json")):
            known = source.get("eos_token_id")
            yield from known if isinstance(known, list) else [known] if isinstance(known, int) else []
        named = self._config.get("eos_token")
        text = named.get("content") if isinstance(named, dict) else named
        found = self._tokens.token_to_id(text) if isinstance(text, str) else None
        if found is not None:
            yield found


def _as_condition(mark: re.Match[str]) -> str:
    """A block that jinja knows, with the same effect on the spaces around it."""
    return f"{{%{mark[1]} {'endif' if mark[2] else 'if true'} {mark[3]}%}}"


def _json_text(value: object, ensure_ascii: bool = False, **options: Any) -> str:
    """As transformers' templates have it: jinja's own would escape for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _refuse(text: str) -> None:
    import jinja2

    raise jinja2.TemplateError(text)
