"""Chat templates of the common families, cut down to what matters for masks, and oracles.

An oracle renders a conversation in plain Python as pieces of (text, trained), written from the
template's description, so that the mask is checked against something that shares no code with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Messages = list[dict[str, str]]
Pieces = list[tuple[str, bool]]

LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + "
    "'<|end_header_id|>\n\n' + m['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
    "{% endif %}"
)

CHATML = (
    "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}"
    "{{ '<|im_start|>system\nBe good.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

GEMMA = (
    "{{ bos_token }}{% for m in messages %}"
    "{% set role = 'model' if m['role'] == 'assistant' else m['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' + m['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)

MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}"
    "{{ '[INST] ' + m['content'] + ' [/INST]' }}{% else %}"
    "{{ ' ' + m['content'] + eos_token }}{% endif %}{% endfor %}"
)

QWEN3 = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and
        not(message.content.startswith('<tool_response>') and
        message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n')
                .split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or reasoning_content) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') +
                '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls or [] %}
            {%- if (loop.first and content) or (not loop.first) %}{{- '\\n' }}{%- endif %}
            {{- '<tool_call>\\n{"name": "' }}{{- tool_call.function.name }}
            {{- '", "arguments": ' }}{{- tool_call.function.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}{{- content }}{{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""


def llama3(messages: Messages) -> Pieces:
    pieces: Pieces = [("<bos>", False)]
    for m in messages:
        trained = m["role"] == "assistant"
        pieces += [
            (f"<|start_header_id|>{m['role']}<|end_header_id|>\n\n", False),
            (m["content"].strip() + "<|eot_id|>", trained),
        ]
    return pieces


def chatml(messages: Messages) -> Pieces:
    pieces: Pieces = []
    if messages[0]["role"] != "system":
        pieces.append(("<|im_start|>system\nBe good.<|im_end|>\n", False))
    for m in messages:
        trained = m["role"] == "assistant"
        pieces += [
            (f"<|im_start|>{m['role']}\n", False),
            (m["content"] + "<|im_end|>", trained),
            ("\n", False),
        ]
    return pieces


def gemma(messages: Messages) -> Pieces:
    pieces: Pieces = [("<bos>", False)]
    for m in messages:
        trained = m["role"] == "assistant"
        role = "model" if trained else m["role"]
        pieces += [
            (f"<start_of_turn>{role}\n", False),
            (m["content"].strip() + "<end_of_turn>", trained),
            ("\n", False),
        ]
    return pieces


def mistral(messages: Messages) -> Pieces:
    pieces: Pieces = [("<bos>", False)]
    for m in messages:
        if m["role"] == "assistant":
            # The prompt ends in "[/INST]": the space is the model's to say.
            pieces.append((" " + m["content"] + "<eos>", True))
        else:
            pieces.append((f"[INST] {m['content']} [/INST]", False))
    return pieces


def qwen3(messages: Messages) -> Pieces:
    pieces: Pieces = []
    last_query = max((i for i, m in enumerate(messages) if m["role"] == "user"), default=-1)
    for i, m in enumerate(messages):
        content = m["content"]
        trained = m["role"] == "assistant"
        if trained:
            reasoning = ""
            if "</think>" in content:
                reasoning = content.split("</think>")[0].rstrip("\n").split("<think>")[-1]
                reasoning = reasoning.lstrip("\n")
                content = content.split("</think>")[-1].lstrip("\n")
            if i > last_query and (i == len(messages) - 1 or reasoning):
                content = (
                    "<think>\n" + reasoning.strip("\n") + "\n</think>\n\n" + (content.lstrip("\n"))
                )
        pieces += [
            (f"<|im_start|>{m['role']}\n", False),
            (content + "<|im_end|>", trained),
            ("\n", False),
        ]
    return pieces


@dataclass(frozen=True)
class Family:
    template: str
    oracle: Callable[[Messages], Pieces]
    control: tuple[str, ...]
    system: bool = True
    ordinary: tuple[str, ...] = ()


FAMILIES = {
    "llama3": Family(LLAMA3, llama3, ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")),
    "chatml": Family(CHATML, chatml, ("<|im_start|>", "<|im_end|>")),
    "gemma": Family(GEMMA, gemma, ("<start_of_turn>", "<end_of_turn>"), system=False),
    "mistral": Family(MISTRAL, mistral, ("[INST]", "[/INST]"), system=False),
    "qwen3": Family(
        QWEN3, qwen3, ("<|im_start|>", "<|im_end|>"),
        ordinary=("<think>", "</think>", "<tool_call>", "</tool_call>"),
    ),
}  # fmt: skip
