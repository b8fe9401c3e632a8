"""Chat templates: what models' templates write, and what may not happen in them."""

from __future__ import annotations

import pytest

from ourcc.ir.errors import InputError, ModelError
from ourcc.runtime.language.template import render

TALK = [{"role": "user", "content": "Hi {{ 1 + 1 }}"}, {"role": "assistant", "content": "Ho"}, {"role": "user", "content": "?"}]
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def test_a_conversation() -> None:
    expected = "".join(f"<|im_start|>{each['role']}\n{each['content']}<|im_end|>\n" for each in TALK)
    assert render(CHATML, TALK, answer=False) == expected
    assert render(CHATML, TALK) == expected + "<|im_start|>assistant\n"


def test_what_templates_use() -> None:
    assert (
        render(
            "{{ bos_token }}{% for m in messages %}{% if loop.last %}{{ m.content | trim }}{% break %}{% endif %}{% endfor %}",
            TALK,
            {"bos_token": "<s>"},
        )
        == "<s>?"
    )
    assert render("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", TALK) == "3"
    assert render("{% generation %}{{ messages[0].role }}{% endgeneration %}!", TALK) == f"{TALK[0]['role']}!"
    assert len(render("{{ strftime_now('%Y') }}", TALK)) == 4
    assert render("{% macro f(x) %}[{{ x }}]{% endmacro %}{{ f(messages | length) }}{{ [1, 'a'] | tojson }}", TALK) == '[3][1, "a"]'


def test_a_template_may_refuse() -> None:
    with pytest.raises(InputError, match="refuses the conversation: roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}", TALK)


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__.__name__ }}",
        "{{ raise_exception.__globals__.os }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__.os.popen('true').read() }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}",
        "{% for a in range(10 ** 12) %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 'a' * 10 ** 10 }}",
        "{{ 10 ** (10 ** 10) }}",
        "{% set ns = namespace(x='ab') %}{% for n in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{{ 'a'.ljust(10 ** 11) }}",
        "{{ '%99999999999d' % 3 }}",
        "{{ 1 / 0 }}",
        "{{ nothing.here }}",
        "{{ ('a' * 10 ** 6).replace('a', 'b' * 10 ** 6) }}",
        "{{ 'x' | center(10 ** 11) }}",
        "{{ '{:99999999999}'.format(3) }}",
        "{% if %}",
        "{{ messages[9].content }}",
        "{% include 'other' %}",
        "{% import 'os' as os %}",
    ],
)
def test_what_may_not_happen(template: str) -> None:
    with pytest.raises(ModelError, match="chat template"):
        render(template, TALK)


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages | tojson }}",
        "{{ messages | tojson(indent=2) }}{{ messages[0] | tojson(sort_keys=true, separators=(',', ':')) }}",
        "{{ tools is defined }}{{ tools is none }}{{ documents }}",
        "{{ unk_token }}|{{ pad_token is defined }}|{{ bos_token }}",
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    ],
)
def test_templates_see_what_transformers_gives_them(template: str) -> None:
    """Filters and variables as transformers' own rendering has them, which is what templates are written for."""
    from transformers.utils.chat_template_utils import render_jinja_template

    talk = [{"role": "user", "content": "a<b & 'c' é", "b": 1, "a": [None, True]}, {"role": "assistant", "content": "\u2028"}]
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    expected, _ = render_jinja_template([talk], chat_template=template, add_generation_prompt=True, **named)
    assert render(template, talk, named) == expected[0]


def test_what_a_template_says_is_cut_short() -> None:
    with pytest.raises(InputError) as refused:
        render("{{ raise_exception('x' * 3000000) }}", TALK)
    assert len(refused.value.message) < 1000
