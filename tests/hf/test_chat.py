"""A conversation with an artifact: templates, sampling, streams of text, and what is piped in."""

import math
from pathlib import Path
from types import SimpleNamespace

import checkpoints
import pytest
import torch
import transformers as tf
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import aotair
from aotair.chat import tokenizer as chat_tokenizer
from aotair.chat.conversation import Conversation
from aotair.chat.generate import Generator
from aotair.chat.sampling import Sampler, Sampling, likely
from aotair.chat.tokenizer import Tokenizer
from aotair.cli import main
from aotair_runtime.errors import AotairError
from aotair_runtime.format.schema import Axis

MESSAGES = [{"role": "user", "content": "Hé, 🙂 you"}, {"role": "assistant", "content": "yes"}]


@pytest.fixture(scope="module")
def served(artifact: Path):
    with aotair.load(artifact, enable_output_clone=True) as model:
        yield model


@pytest.fixture(scope="module")
def tokenizer(artifact: Path, served: aotair.Model) -> Tokenizer:
    return Tokenizer(artifact, served.program)


def test_a_conversation_becomes_the_ids_of_transformers(tokenizer: Tokenizer, checkpoint: Path):
    theirs = tf.AutoTokenizer.from_pretrained(checkpoint)
    want = theirs.apply_chat_template(MESSAGES, add_generation_prompt=True, tokenize=True)
    assert tokenizer.encode(MESSAGES) == list(want["input_ids"])


def test_letters_of_several_tokens_come_whole(tokenizer: Tokenizer):
    ids = tokenizer.encode(MESSAGES)
    pieces = list(tokenizer.pieces(iter(ids)))
    assert "🙂" in pieces and "é" in pieces and not any("\ufffd" in piece for piece in pieces)


def test_bytes_that_never_become_a_letter_are_told_at_the_end(tokenizer: Tokenizer):
    first = tokenizer.encode([{"role": "user", "content": "🙂"}])
    assert "\ufffd" in "".join(tokenizer.pieces(iter(first[1:3])))


def test_the_likeliest_tokens_are_those_of_transformers(served: aotair.Model, checkpoint: Path):
    model = tf.AutoModelForCausalLM.from_pretrained(checkpoint)
    generator, greedy = Generator(served), Sampler(Sampling())
    for prompt in ([7], list(range(3, 40)), [5, 6]):  # the second one is longer than the largest bucket of 32
        want = checkpoints.generated(model, prompt, 10)
        assert list(generator.tokens(prompt, greedy, frozenset(), 10)) == want


def test_an_artifact_that_gives_tokens_instead_of_logits_is_never_drawn_from(checkpoint: Path, tmp_path: Path):
    model = {"pretrained": str(checkpoint), "kwargs": {"slots": 1, "length": 32, "greedy": True}}
    buckets = {"prefill": {"buckets": {"batch": [1], "seq": [8]}}, "decode": {"buckets": {"batch": [1]}}}
    path = aotair.build({"name": "greedy", "model": model, "entry_points": buckets}, tmp_path / "out")
    want = checkpoints.generated(tf.AutoModelForCausalLM.from_pretrained(checkpoint), [5, 9], 10)
    with aotair.load(path, enable_output_clone=True) as greedy:
        for sampling in (Sampling(), Sampling(temperature=2.0, top_p=0.9, top_k=50, seed=1)):
            assert list(Generator(greedy).tokens([5, 9], Sampler(sampling), frozenset(), 10)) == want


def test_generation_ends_at_an_end_token_and_at_the_end_of_the_row(served: aotair.Model):
    generator, greedy = Generator(served), Sampler(Sampling())
    free = list(generator.tokens([5, 9], greedy, frozenset(), 1000))
    assert len(free) == 64 - 2 + 1  # each place of the row, and the token after the last one
    ends = free.index(free[7])
    assert list(generator.tokens([5, 9], greedy, frozenset({free[7]}), 1000)) == free[:ends]
    for prompt in ([], [1] * 64):
        with pytest.raises(AotairError, match="the prompt does not fit"):
            next(generator.tokens(prompt, greedy, frozenset(), 1))


def test_a_conversation_longer_than_the_cache_forgets_its_oldest_messages(served: aotair.Model, tokenizer: Tokenizer):
    talk = Conversation(tokenizer, Generator(served), Sampler(Sampling()), None, 4)
    for number in range(9):
        list(talk.say(f"message number {number}"))
    with pytest.raises(AotairError, match="longer than the model's cache"):
        list(talk.say("x" * 70))
    assert "".join(talk.say("hello")) is not None


# ---- sampling ------------------------------------------------------------------------------------------------------

logits = st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=30)


@given(logits, st.floats(0.05, 5), st.floats(0.01, 1), st.integers(0, 40))
@settings(max_examples=200, deadline=None)
def test_what_is_likely_is_a_distribution_over_the_likeliest(values, temperature, top_p, top_k):
    scores = torch.tensor(values)
    found = likely(scores, Sampling(temperature, top_p, top_k))
    kept = found > 0
    assert math.isclose(float(found.sum()), 1, rel_tol=1e-4)
    whole = (scores / temperature).softmax(-1)
    if (~kept).any():
        assert whole[kept].min() >= whole[~kept].max()
    if top_k == 0:
        assert float(whole[kept].sum()) >= min(top_p, 1) - 1e-4


def test_the_same_seed_draws_the_same_tokens():
    scores = torch.randn(50)
    drawn = [[Sampler(Sampling(1.0, seed=seed))(scores) for _ in range(1)] for seed in range(40)]
    again = [[Sampler(Sampling(1.0, seed=seed))(scores) for _ in range(1)] for seed in range(40)]
    assert drawn == again and len({one[0] for one in drawn}) > 5


def test_draws_are_as_frequent_as_likely():
    sampler, scores = Sampler(Sampling(1.0, seed=3)), torch.tensor([0.0, 1.0, -1.0])
    counts = torch.bincount(torch.tensor([sampler(scores) for _ in range(4000)]), minlength=3) / 4000
    torch.testing.assert_close(counts, scores.softmax(-1), atol=0.03, rtol=0)


@pytest.mark.parametrize("wrong", [{"temperature": -1.0}, {"top_p": 0.0}, {"top_k": -1}, {"seed": -1}])
def test_what_cannot_be_drawn_by_is_refused(wrong):
    with pytest.raises(AotairError, match="is not possible"):
        Sampling(**{"temperature": 1.0, **wrong})


# ---- the command ---------------------------------------------------------------------------------------------------


def test_what_is_piped_in_is_one_message(artifact: Path):
    run = CliRunner().invoke(main, ["chat", str(artifact), "--max-tokens", "5", "--speed"], input="Hello\nyou\n")
    assert run.exit_code == 0, run.output
    assert "5 tokens in" in run.stderr
    again = CliRunner().invoke(main, ["chat", str(artifact), "--max-tokens", "5"], input="Hello\nyou\n")
    assert again.stdout == run.stdout and run.stdout.strip()


def test_a_message_is_answered_alone(artifact: Path):
    run = CliRunner().invoke(main, ["chat", str(artifact), "Hello\nyou", "--max-tokens", "5"])
    piped = CliRunner().invoke(main, ["chat", str(artifact), "--max-tokens", "5"], input="Hello\nyou\n")
    assert run.exit_code == 0 and run.stdout == piped.stdout


def test_an_artifact_without_a_tokenizer_is_refused(built, tmp_path: Path):
    run = CliRunner().invoke(main, ["chat", str(built("encoder"))], input="Hello\n")
    assert run.exit_code == 1 and "the artifact has no tokenizer" in run.output


def test_a_template_means_what_it_means_in_transformers(served, checkpoint: Path, monkeypatch, tmp_path: Path):
    template = (
        "{%- for message in messages %}\n<{{ message.role }}>\n  {%- generation -%}\n {{ message.content | tojson }} \n"
        "  {% endgeneration %}\n{{ message | tojson(indent=1) }}\n{% endfor %}"
    )
    messages = [{"role": "user", "content": "<é> 'a' & \"b\""}, {"role": "assistant", "content": "yes"}]
    (tmp_path / "chat_template.jinja").write_text(template)
    monkeypatch.setattr(chat_tokenizer, "companions", lambda _: ["tokenizer.json", "chat_template.jinja"])
    places = {"tokenizer.json": checkpoint, "chat_template.jinja": tmp_path}
    monkeypatch.setattr(chat_tokenizer, "read_companion", lambda _, __, name: (places[name] / name).read_bytes())
    theirs = tf.AutoTokenizer.from_pretrained(checkpoint)
    want = theirs.apply_chat_template(messages, chat_template=template, add_generation_prompt=True, tokenize=False)
    assert Tokenizer(checkpoint, served.program)._rendered(messages) == want


def test_a_template_cannot_leave_its_sandbox(checkpoint: Path, tmp_path: Path):
    folder = tmp_path / "hostile"
    folder.mkdir()
    for file in checkpoint.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "chat_template.jinja").write_text("{{ ''.__class__.__mro__[1].__subclasses__() }}")
    buckets = {"prefill": {"buckets": {"batch": [1], "seq": [8]}}, "decode": {"buckets": {"batch": [1]}}}
    model = {"pretrained": str(folder), "kwargs": {"slots": 1, "length": 32}}
    path = aotair.build({"name": "hostile", "model": model, "entry_points": buckets}, tmp_path / "out")
    run = CliRunner().invoke(main, ["chat", str(path)], input="Hello\n")
    assert run.exit_code == 1 and "the chat template refuses the conversation" in run.output


def test_it_talks_with_artifacts_of_one_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class OfRanks:
        program = SimpleNamespace(mesh=(Axis("tp", 2),))

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

    monkeypatch.setattr("aotair_runtime.load", lambda *_args, **_kwargs: OfRanks())
    run = CliRunner().invoke(main, ["chat", str(tmp_path), "Hello"])
    assert run.exit_code == 1 and "artifacts of one rank" in run.output and "tp=2" in run.output
