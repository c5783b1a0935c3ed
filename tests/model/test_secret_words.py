from pathlib import Path

import pytest

from hpcml.model.cluster import SchedulerName
from hpcml.model.secrets import is_secret_name, masked, masked_json, masked_line, masked_settings, without_password
from tests.composing import compose_run


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("python t.py --password 'a b' --apiKey=1x", "python t.py --password *** --apiKey=***"),
        ('bash -c "t --api-key x1 --lr 1"', 'bash -c "t --api-key *** --lr 1"'),
        (
            "curl -H 'Authorization: Bearer abc.def' https://me:pw1@host/",
            "curl -H 'Authorization: Bearer ***' https://me:***@host/",
        ),
        ("env WANDB_API_KEY=abc PGPASSWORD=x python -m t", "env WANDB_API_KEY=*** PGPASSWORD=*** python -m t"),
        ("git clone https://ghp_0123456789abcdefghij@github.com/a/b", "git clone https://***@github.com/a/b"),
        (
            f"t --a sk-proj-ab_1-{'x1Y' * 8} --b sk-{'a1' * 16} --c hf_{'aB' * 17} --d sk-ant-api03-{'x1Y' * 8}",
            "t --a *** --b *** --c *** --d ***",
        ),
        ('t --config \'{"api_key": "abc", "lr": 1}\'', 't --config \'{"api_key": ***, "lr": 1}\''),
    ],
)
def test_a_secret_in_a_command_line_is_hidden(line: str, shown: str) -> None:
    assert masked_line(line) == shown


@pytest.mark.parametrize(
    "line",
    [
        "vit --class_token data/ --pool-token mean --use_auth_token true --prob_token 0.1 --keep_first_token x",
        "python t.py --tokenizer bpe --max-tokens 512 --eos-token '</s>' --pad_token '[PAD]' --image-token <img>",
        "python t.py --lr 0.1 --key date --sort-key=name --pat 5 --tokens_per_batch=4096 --token {token}",
        "make CC=gcc-12 && ./run --passes 3 --keys a,b  --author me --use-auth",
        "torchrun --rdzv-endpoint=host:29500 t.py --ckpt s3://bucket/a:b@c --num_secret_layers 3",
        "t workload.env.HF_TOKEN=${oc.env:HF_TOKEN} 'it is' --x='' --password",
        "it's unbalanced --lr 3",
        "x'a b'y z=x'a b'y",
        "t --model sk-learn-random-forest-classifier --data runs/sk-learn-gradient-boosting-v2 --ckpt ghs_model_v1",
        "t --model hf_distilbertbaseuncased --initializer_token toy --tgt_lang_token de_DE --separator-token tab",
    ],
)
def test_what_is_no_secret_stays(line: str) -> None:
    assert masked_line(line) == line


def test_words_of_hydra_are_read_as_it_reads_them() -> None:
    words = [
        "workload.command='python t.py --api-key x'",
        "+args.token=x1",
        "workload.env={HF_TOKEN: x1, A: 2}",
        "seed=0,1",
    ]

    hidden = [
        "workload.command='python t.py --api-key ***'",
        "+args.token=***",
        "workload.env={HF_TOKEN: ***, A: 2}",
        "seed=0,1",
    ]
    assert masked(words) == hidden


def test_settings_and_run_json_are_searched_by_their_keys() -> None:
    run = {"workload": {"command": "t --token ab", "env": {"HF_TOKEN": "ab"}}, "seed": 3}

    assert masked_settings({"workload.command": "t --token ab", "workload.env.HF_TOKEN": "ab", "seed": 3}) == {
        "workload.command": "t --token ***",
        "workload.env.HF_TOKEN": "***",
        "seed": 3,
    }
    assert masked_json({"run": run, "plan": {"argv": ["t", "--token", "ab"], "cwd": "/a"}}) == {
        "run": {"workload": {"command": "t --token ***", "env": {"HF_TOKEN": "***"}}, "seed": 3},
        "plan": {"argv": ["t", "--token", "***"], "cwd": "/a"},
    }


def test_no_setting_of_hpcml_has_a_name_like_a_secret(tmp_path: Path) -> None:
    run = compose_run([], tmp_path)

    assert run.cluster.scheduler is SchedulerName.local
    assert [key for key in run.settings if is_secret_name(key)] == []


@pytest.mark.parametrize(
    "piece", ["'", "--a", "x=", " ", "-", "'\"", "token", "x'a b'", "hf_", "a.b:", "://", "{a:", "bearer "]
)
def test_long_words_are_read_in_a_moment(piece: str) -> None:
    text = piece * 20_000

    assert masked_line(text).count("x") == text.count("x")


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("postgresql://ada:se@cr:et/x@db:5432/hpcml", "postgresql://ada:***@db:5432/hpcml"),
        ("--store=postgresql+psycopg://ada:secret@/hpcml", "--store=postgresql+psycopg://ada:***@/hpcml"),
        (
            "postgresql://ada@db/hpcml?password=se&sslpassword=cret&a=b",
            "postgresql://ada@db/hpcml?password=***&sslpassword=***&a=b",
        ),
        ("postgresql://ada@db/hpcml", "postgresql://ada@db/hpcml"),
        ("workload.command=a://b:c@d", "workload.command=a://b:***@d"),
        ("workload.command=a://b@c/d:e", "workload.command=a://b@c/d:e"),
    ],
)
def test_a_password_in_a_url_is_not_shown(word: str, shown: str) -> None:
    assert without_password(word) == shown
