"""No secret of a command line reaches a screen, a record or an export."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputop_llm.redact_argv import is_secret_name, redact_argv, redact_record, redact_text

HIDDEN = "***"
SECRET_OPTIONS = [
    "--api-key",
    "--apikey",
    "--hf-token",
    "--hf_token",
    "--password",
    "--db-pass",
    "--passcode",
    "--client-secret",
    "--secret-key",
    "--master-key",
    "--litellm-master-key",
    "--encryption-key",
    "--accesskey",
    "--auth",
    "--bearer",
    "--jwt",
    "--cookie",
    "--credentials",
]


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["--api-key", "sesame", "--port", "1"], ["--api-key", HIDDEN, "--port", "1"]),
        (["--api-key", "one", "two", "--port", "1"], ["--api-key", HIDDEN, HIDDEN, "--port", "1"]),
        (["--api_key=sesame"], [f"--api_key={HIDDEN}"]),
        (["--hf-token", "abc", "model"], ["--hf-token", HIDDEN, "model"]),
        (["--ssl-keyfile-password", "abc"], ["--ssl-keyfile-password", HIDDEN]),
        (["HF_TOKEN=abc", "python"], [f"HF_TOKEN={HIDDEN}", "python"]),
        (["AWS_SECRET_ACCESS_KEY=abc"], [f"AWS_SECRET_ACCESS_KEY={HIDDEN}"]),
        (["--header", "Authorization: Bearer abc.def"], ["--header", f"Authorization: {HIDDEN}"]),
        (["X-Api-Key: abc"], [f"X-Api-Key: {HIDDEN}"]),
        (["s3://me:pass@host/bucket"], [f"s3://{HIDDEN}@host/bucket"]),
        (["--x", '{"user": "u", "password": "p w"}'], ["--x", f'{{"user": "u", "password": "{HIDDEN}"}}']),
        (["hf_abcdefghijklmnopqrstuv"], [HIDDEN]),
        (["say sk-abcdefghijklmnopqrstuv twice"], [f"say {HIDDEN} twice"]),
        (["bash", "-c", "vllm serve m --api-key one"], ["bash", "-c", f"vllm serve m --api-key {HIDDEN}"]),
        (["sh", "-c", 'A=1 HF_TOKEN="a b" x --port 1'], ["sh", "-c", f"A=1 HF_TOKEN={HIDDEN} x --port 1"]),
        (["x --password 'a b' --port 1"], [f"x --password {HIDDEN} --port 1"]),
        (["x --api-key one two --port 1"], [f"x --api-key {HIDDEN} --port 1"]),
        (["x --api-key=one --port 1"], [f"x --api-key={HIDDEN} --port 1"]),
        (['x --api-key "cut of'], [f"x --api-key {HIDDEN}"]),
        (['sh -c "x --api-key \\"a b\\""'], [f'sh -c "x --api-key {HIDDEN}']),
        (["curl -H 'X-Api-Key: a b' http://h"], [f"curl -H 'X-Api-Key: {HIDDEN}' http://h"]),
        (["--ngrok-authtoken", "abc"], ["--ngrok-authtoken", HIDDEN]),
        (["--secretkey", "abc"], ["--secretkey", HIDDEN]),
        (["--accesstoken=abc"], [f"--accesstoken={HIDDEN}"]),
        (["--dbpassword", "abc"], ["--dbpassword", HIDDEN]),
        (["OPENAI_API_KEY_1=abc"], [f"OPENAI_API_KEY_1={HIDDEN}"]),
    ],
)
def test_a_secret_is_blanked(argv, shown):
    assert redact_argv(argv) == tuple(shown)


@pytest.mark.parametrize(
    "argv",
    [
        ["vllm", "serve", "org/model-a", "--max-num-batched-tokens", "8192", "--tokenizer", "org/tok"],
        ["--tokenizer-mode", "auto", "--ssl-keyfile", "/etc/key.pem", "--return-tokens-as-token-ids", "m"],
        ["[/mnt/models/llama-3]", "--served-model-name", "org/m[/]", "[@click=app.bell]x[/]"],
        ["--kv-transfer-config", '{"kv_connector": "Nixl", "kv_role": "both"}'],
        ["http://127.0.0.1:8000/metrics", "key", "-1", ""],
        ["org/my-secret", "--seed", "-1"],
        ["vllm serve m --max-num-batched-tokens 8192 --tokenizer org/tok --max-tokens=5 -tp 2"],
        ["VLLM::Worker_TP0", "ray::RayWorkerWrapper.execute_method", "void at::native::k<float, key>(int*)"],
    ],
)
def test_what_is_no_secret_stays_as_it_is(argv):
    assert redact_argv(argv) == tuple(argv)


def test_a_query_of_an_url_is_blanked():
    assert "abc" not in redact_text("https://host/x?X-Amz-Signature=abc")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        # vLLM takes several keys, and argparse and pydantic print them as lists.
        ("Namespace(api_key=['one', 'two'], port=1)", "Namespace(api_key=***, port=1)"),
        ("args: {'x': [{'api_key': ['one', 'two']}]}", "args: {'x': [{'api_key': ***}]}"),
        ("ArgsKwargs((), {'api_key': ('one', 'two')})", "ArgsKwargs((), {'api_key': ***})"),
        ("401: x-api-key: one at /v1", "401: x-api-key: *** at /v1"),
        ("refused, Authorization: Token1234", "refused, Authorization: ***"),
        # Cut before the end of the value.
        ("{'port': 1, 'hf_token': 'one", "{'port': 1, 'hf_token': '***'"),
        ("Namespace(api_key=['one', 'tw", "Namespace(api_key=***"),
        ("max_total_num_tokens=5, tokens: [1, 2]", "max_total_num_tokens=5, tokens: [1, 2]"),
    ],
)
def test_secrets_in_a_line_of_a_log_are_blanked_wherever_they_stand(text, shown):
    assert redact_text(text) == shown


@pytest.mark.parametrize("name", ["NGROK_AUTHTOKEN", "S3_SECRETKEY", "APP_SECRETS", "OPENAI_API_KEY_1", "HF_TOKEN2"])
def test_a_variable_of_a_secret_is_known_by_its_name(name):
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "MAX_TOKENS", "KEYBOARD", "NCCL_DEBUG", "VLLM_USE_V1"])
def test_other_variables_are_no_secrets(name):
    assert not is_secret_name(name)


def test_a_record_keeps_its_form_without_secrets():
    told = {"argv": ["x", "--api-key", "one"], "targets": [{"title": "x --token=one", "pid": 7, "rate": None}]}

    assert redact_record(told) == {
        "argv": ["x", "--api-key", HIDDEN],
        "targets": [{"title": f"x --token={HIDDEN}", "pid": 7, "rate": None}],
    }


words = st.text(st.characters(blacklist_categories=["Cs"]), max_size=30)


@given(st.lists(words, max_size=8))
def test_any_command_line_keeps_its_length(argv):
    assert len(redact_argv(argv)) == len(argv)


@given(
    st.sampled_from(SECRET_OPTIONS),
    st.text("abcdefghijklmnopqrstuvwxyz0123456789", min_size=6, max_size=30),
    st.booleans(),
    st.lists(st.sampled_from(["--port", "8000", "serve", "--enforce-eager"]), max_size=4),
)
def test_the_value_of_a_secret_option_is_nowhere_in_the_result(option, secret, joined, around):
    argv = [*around, f"{option}={secret}", *around] if joined else [*around, option, secret, *around]

    assert not any(secret in word for word in redact_argv(argv))
    assert secret not in redact_text(" ".join(argv))
