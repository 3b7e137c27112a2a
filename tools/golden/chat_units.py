"""The templates that make_chat.py renders: chat templates in the style of each family, in our own
words, and small templates for each construct."""
import re

LLAMA2 = r"""{% if messages[0]['role'] == 'system' %}{% set turns = messages[1:] %}{% set sys = messages[0]['content'] %}{% else %}{% set turns = messages %}{% set sys = false %}{% endif %}
{% for m in turns %}
{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Roles must alternate: user, assistant, user, assistant, ...') }}
{% endif %}
{% if loop.index0 == 0 and sys != false %}
{% set text = '<<SYS>>\n' + sys + '\n<</SYS>>\n\n' + m['content'] %}
{% else %}
{% set text = m['content'] %}
{% endif %}
{% if m['role'] == 'user' %}
{{ bos_token + '[INST] ' + text.strip() + ' [/INST]' }}
{%- elif m['role'] == 'assistant' %}
{{ ' '  + text.strip() + ' ' + eos_token }}
{%- endif %}
{% endfor %}"""

LLAMA3 = r"""{{- bos_token }}
{%- for message in messages %}
    {{- '<|start_header_id|>' ~ message.role ~ '<|end_header_id|>\n\n' ~ (message.content | trim) ~ '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""

LLAMA31 = r"""{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- The system message comes first, whatever follows. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}

{#- Header #}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{%- if builtin_tools is defined or tools is not none %}
    {{- "Environment: ipython\n" }}
{%- endif %}
{%- if builtin_tools is defined %}
    {{- "Tools: " + builtin_tools | reject('equalto', 'code_interpreter') | join(", ") + "\n\n"}}
{%- endif %}
{{- "Knowledge until: " + "December 2023\n" }}
{{- "Today: " + date_string + "\n\n" }}
{%- if tools is not none and not tools_in_user_message %}
    {{- "These functions can be called. Answer with JSON for a call.\n\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\n\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}

{#- The tools go with the first user message. #}
{%- if tools_in_user_message and not tools is none %}
    {%- if messages | length != 0 %}
        {%- set first_user_message = messages[0]['content']|trim %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("Cannot put tools in the first user message when there is none!") }}
{%- endif %}
    {{- '<|start_header_id|>user<|end_header_id|>\n\n' -}}
    {{- "Given these functions, answer with a call.\n\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\n\n" }}
    {%- endfor %}
    {{- first_user_message + "<|eot_id|>"}}
{%- endif %}

{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {%- if builtin_tools is defined and tool_call.name in builtin_tools %}
            {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}
            {{- "<|python_tag|>" + tool_call.name + ".call(" }}
            {%- for arg_name, arg_val in tool_call.arguments | items %}
                {{- arg_name + '="' + arg_val + '"' }}
                {%- if not loop.last %}
                    {{- ", " }}
                {%- endif %}
                {%- endfor %}
            {{- ")" }}
        {%- else  %}
            {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}
            {{- '{"name": "' + tool_call.name + '", ' }}
            {{- '"parameters": ' }}
            {{- tool_call.arguments | tojson }}
            {{- "}" }}
        {%- endif %}
        {%- if builtin_tools is defined %}
            {{- "<|eom_id|>" }}
        {%- else %}
            {{- "<|eot_id|>" }}
        {%- endif %}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\n\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""

MISTRAL1 = r"""{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must go user/assistant/user/assistant/...') }}{% endif %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token + ' ' }}{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"""

MISTRAL3 = r"""{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}

{#- User and assistant take turns; calls and results do not count. #}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the system message, roles must alternate user/assistant") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}

{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}
                        {{- ", " }}
                    {%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}
                    {{- ", " }}
                {%- else %}
                    {{- "]" }}
                {%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
            {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\n\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}
                {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}
                {{- ", " }}
            {%- else %}
                {{- "]" + eos_token }}
            {%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- elif message["role"] == "tool_results" or message["role"] == "tool" %}
        {%- if message.content is defined and message.content.content is defined %}
            {%- set content = message.content.content %}
        {%- else %}
            {%- set content = message.content %}
        {%- endif %}
        {{- '[TOOL_RESULTS] {"content": ' + content|string + ", " }}
        {%- if not message.tool_call_id is defined or message.tool_call_id|length != 9 %}
            {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
        {%- endif %}
        {{- '"call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported, with an initial system message") }}
    {%- endif %}
{%- endfor %}
"""

QWEN2 = r"""{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are a helpful assistant.<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""

QWEN25 = r"""{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are a helper.' }}
    {%- endif %}
    {{- "\n\n# Tools\n\nFunctions within <tools></tools>:\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools>\n\nAnswer a call as\n<tool_call>\n{\"name\": <name>, \"arguments\": <object>}\n</tool_call><|im_end|>\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>system\nYou are a helper.<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\n<tool_call>\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' }}
        {{- message.content }}
        {{- '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""

QWEN3ISH = r"""{%- set state = namespace(last_query=messages|length - 1, searching=true) %}
{%- for message in messages[::-1] %}
    {%- set i = (messages|length - 1) - loop.index0 %}
    {%- if state.searching and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set state.searching = false %}
        {%- set state.last_query = i %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- elif message.content is none or message.content is not defined %}
        {%- set content = '' %}
    {%- else %}
        {%- set content = message.content | map(attribute='text') | join('') %}
    {%- endif %}
    {%- if message.role == 'assistant' %}
        {%- set thought = '' %}
        {%- if message.reasoning_content is string %}
            {%- set thought = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\n' }}
        {%- if loop.index0 > state.last_query and (loop.last or thought) %}
            {{- '<think>\n' ~ thought.strip('\n') ~ '\n</think>\n\n' }}
        {%- endif %}
        {{- content.lstrip('\n') }}
        {%- for c in message.tool_calls or [] %}
            {{- '\n' if (loop.first and content) or not loop.first else '' }}
            {{- '<tool_call>\n' ~ ({'name': c.function.name, 'arguments': c.function.arguments} | tojson) ~ '\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user\n' if loop.previtem is not defined or loop.previtem.role != 'tool' }}
        {{- '<tool_response>\n' ~ (content if message.content is string else message.content|tojson) ~ '\n</tool_response>' }}
        {{- '<|im_end|>\n' if loop.nextitem is not defined or loop.nextitem.role != 'tool' else '\n' }}
    {%- else %}
        {{- '<|im_start|>' ~ message.role ~ '\n' ~ content ~ '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {{- '<think>\n\n</think>\n\n' if enable_thinking is defined and enable_thinking is false }}
{%- endif %}
"""

GEMMA = r"""{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '
' + message['content'] | trim + '<end_of_turn>
' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model
'}}{% endif %}"""

GEMMA3 = r"""{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set prefix = messages[0]['content'] + '\n\n' -%}
    {%- else -%}
        {%- set prefix = messages[0]['content'][0]['text'] + '\n\n' -%}
    {%- endif -%}
    {%- set turns = messages[1:] -%}
{%- else -%}
    {%- set prefix = "" -%}
    {%- set turns = messages -%}
{%- endif -%}
{%- for message in turns -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\n' + (prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}
                {{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\n'}}
{%- endif -%}
"""

PHI3 = r"""{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}{{'<|system|>
' + message['content'] + '<|end|>
'}}{% elif message['role'] == 'user' %}{{'<|user|>
' + message['content'] + '<|end|>
'}}{% elif message['role'] == 'assistant' %}{{'<|assistant|>
' + message['content'] + '<|end|>
'}}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>
' }}{% else %}{{ eos_token }}{% endif %}"""

FALCON = r"""{% for message in messages %}
    {% if not loop.first %}

    {% endif %}
    {% if message['role'] == 'system' %}
System: {{ message['content'] }}
    {%- elif message['role'] == 'user' %}
User: {{ message['content'].replace('\r\n', '\n').replace('\n\n', '\n') }}
    {%- elif message['role'] == 'assistant' %}
Falcon: {{ message['content'] }}
    {%- endif %}
{% endfor %}
{% if add_generation_prompt %}

Falcon:
{%- endif %}
"""

# A schema printed as type declarations by a macro that calls itself.
MACROS = r"""{%- macro type_of(p, depth=0) -%}
    {%- if p.type == 'array' -%}
        {{ type_of(p['items'], depth + 1) if p['items'] is defined else 'any' }}[]
    {%- elif p.type == 'object' and p.properties is defined -%}
        { {%- for name, q in p.properties.items() %}
            {{- ' ' ~ name ~ ('' if name in (p.required or []) else '?') ~ ': ' ~ type_of(q, depth=depth + 1) }}
            {{- ',' if not loop.last }}
        {%- endfor %} }
    {%- elif p.enum -%}
        {{ p.enum | map('tojson') | join(' | ') }}
    {%- else -%}
        {{ {'integer': 'number', 'number': 'number', 'string': 'string', 'boolean': 'boolean'}.get(p.type, 'any') }}
    {%- endif -%}
{%- endmacro -%}
{%- macro section(title) %}
## {{ title | title }}
{{ caller() }}
{% endmacro -%}
{% if tools %}
{% call section('the tools') %}
{% for tool in tools | sort(attribute='function.name') %}
// {{ tool.function.description | replace('\n', ' ') }}
type {{ tool.function.name }} = {{ type_of(tool.function.parameters) }};
{% endfor %}
{% endcall %}
{% endif %}
{%- for role, group in [('system', messages | selectattr('role', 'equalto', 'system') | list), ('rest', messages | rejectattr('role', 'equalto', 'system') | list)] %}
{% for m in group %}
{% set body %}
{% if m.content is string %}{{ m.content }}{% elif m.content %}{{ m.content | tojson(indent=2) }}{% else %}(nothing){% endif %}
{% endset %}
[{{ role | upper }}/{{ m.role | default('?', true) }}] {{ body | trim | indent(2) }}
{% else %}
[{{ role | upper }}] none
{% endfor %}
{% endfor %}
{%- if add_generation_prompt %}{% generation %}[ASSISTANT] {% endgeneration %}{% endif %}
"""

TEMPLATES = {
    "llama2-style": LLAMA2,
    "llama3-style": LLAMA3,
    "llama3.1-style": LLAMA31,
    "mistral-v1-style": MISTRAL1,
    "mistral-v3-style": MISTRAL3,
    "qwen2-style": QWEN2,
    "qwen2.5-style": QWEN25,
    "qwen3-style": QWEN3ISH,
    "gemma-style": GEMMA,
    "gemma3-style": GEMMA3,
    "phi3-style": PHI3,
    "falcon-style": FALCON,
    "macros": MACROS,
}

VARS = {
    "i": 7, "z": 0, "neg": -3, "f": 2.5, "big": 123456789012, "s": "Hello World", "e": "", "t": True,
    "n": None, "xs": [3, 1, 2], "mixed": [1, "a", None, 2.0, True, [1, 2], {"k": "v"}],
    "d": {"b": 1, "a": 2, "items": "mine", "nested": {"x": [10, 20, {"y": "deep"}]}},
    "people": [{"name": "Bob", "age": 30, "ok": True}, {"name": "alice", "age": 25, "ok": False},
               {"name": "Carl", "age": 30}],
    "u": "Zürich ÀÉ 世界 👋", "ws": " \t pad \n", "q": "it's \"q\" \\ \n\t\x07\x7f", "words": "the quick  brown\nfox",
    "html": "<a href=\"x\">&'</a>",
}

EXPRESSIONS = r"""
1 + 2 * 3 - 4 / 2
7 // 2 ~ ' ' ~ -7 // 2 ~ ' ' ~ 7 % 3 ~ ' ' ~ -7 % 3 ~ ' ' ~ 7 % -3
2 ** 10 ~ ' ' ~ 2 ** -1 ~ ' ' ~ 2.5 ** 2
-2 ** 2
7.0 // 2 ~ ' ' ~ -7.5 % 2 ~ ' ' ~ 7.5 % -2
1 / 3 ~ ' ' ~ 1e22 ~ ' ' ~ 1e-7 ~ ' ' ~ 123456789.125 ~ ' ' ~ 1e16 ~ ' ' ~ 1e15
0.1 + 0.2
100.0 ~ ' ' ~ 1.5e300 ~ ' ' ~ 5e-324 ~ ' ' ~ 0.0001 ~ ' ' ~ 0.00001
1 / 0
1 % 0
1.0 // 0
'a' * 3 ~ 2 * 'b' ~ 'c' * -1
[1, 2] * 2
[1] + [2] + xs
(1, 2) + (3,)
'a' + 1
1 + 'a'
'a' ~ 1 ~ none ~ true ~ 1.0 ~ missing
[] + ()
n + 1
missing + 1
1 + missing
missing ~ 'x'
missing
missing.attr
missing['k']
missing()
d.missing
d.missing.more
d['missing']
d.missing ~ '|' ~ d.nope
xs[10]
xs[10].a
xs['a']
n.foo
n.foo.bar
n['foo']
s.foo.bar
i.foo
not missing
1 < 2 < 3 ~ 1 < 3 < 2
1 == 1.0 ~ true == 1 ~ '1' == 1 ~ none == none ~ [1] == [1.0] ~ (1,) == [1]
{'a': 1} == {'a': 1.0} ~ {'a': 1} != {'b': 1}
'a' < 'b' ~ 'B' < 'a' ~ 'é' > 'z' ~ [1, 2] < [1, 3] ~ (1,) < (1, 0)
1 < 'a'
none < 1
missing < 1
missing == missing2
missing == none
'ell' in s ~ 'x' in s ~ '' in s
1 in xs ~ 9 not in xs ~ 'a' in d ~ 'q' not in d
1 in s
missing in s
'x' in missing
missing in xs
1 in n
none in mixed
true and 0 ~ 'x' or 'y'
(0 or '' or 'last') ~ (1 and 'x' and '') ~ '.'
not 0 and not ''
1 if t else 2
1 if z
(1 if z).foo
'a' if z else 'b' if z else 'c'
s if s is defined and s else 'none'
[1, 'a', none, true, 2.5, (1,), (), {'k': [1]}, 'it''s']
['it\'s', "say \"x\"", 'both \' and "', 'new\nline\ttab', 'back\\slash', 'é世\u200b\xa0\x00']
{'a': 1, 2: 'b', none: 3, true: 4, 1.5: 5, (1, 2): 6}
{'a': 1, 'a': 2}
{1: 'a', true: 'b', 1.0: 'c'}
{[1]: 2}
mixed
d
d.nested.x[2].y ~ d['nested']['x'][-2]
d.items() | list
d['items']
d.items
d.keys() | list ~ d.values() | list
d.get('a') ~ d.get('zz') ~ d.get('zz', 'dflt') ~ d.get('b', default=1)
d.get('b')
d.copy() == d
d.pop('a')
d.update({'q': 1})
xs.append(4)
xs.sort()
xs.pop is defined
xs.index(1) ~ xs.count(3) ~ xs.index(99)
xs.index(1) ~ xs.count(3)
d.__class__
s.__class__.__mro__
xs.__len__()
''.__class__ is defined
s.upper() ~ s.lower() ~ s.title() ~ s.capitalize() ~ s.swapcase()
s.upper() ~ s.lower() ~ s.title() ~ s.capitalize()
u.upper() ~ u.lower() ~ u.title() ~ u | title
'straße ñandú ŸÿƂ'.upper()
'straße ñandú Ÿÿ αβγ ΑΒΓ Жук'.upper() ~ 'STRASSE ÑANDÚ Ÿÿ ΑΒΓ ЖУК'.lower()
'ab-cd ef_gh x1y (z'.title() ~ '/' ~ ('ab-cd ef_gh x1y (z' | title) ~ '/' ~ ("it's ÀB" | title)
s.split() ~ words.split() ~ words.split(' ') ~ words.split(none, 1) ~ words.split(maxsplit=2)
s.split('o') ~ s.split('o', 1) ~ s.rsplit('o', 1) ~ s.split('zz') ~ e.split() ~ e.split(',')
s.split('')
'a,b,,c'.split(',') ~ 'a,b,,c'.rsplit(',') ~ 'aXbXc'.split('X', 0)
s.partition('o') ~ s.rpartition('o') ~ s.partition('z') ~ s.rpartition('z')
words.splitlines() ~ 'a\r\nb\rc\n\nd'.splitlines() ~ 'a\nb\n'.splitlines(true) ~ ''.splitlines()
'-'.join(['a', 'b']) ~ ''.join([]) ~ ', '.join({'x': 1, 'y': 2})
'-'.join([1, 2])
ws.strip() ~ '|' ~ ws.lstrip() ~ '|' ~ ws.rstrip() ~ '|'
'xxabcxx'.strip('x') ~ 'abcba'.strip('ab') ~ 'éaé'.strip('é') ~ ' x'.strip(none) ~ 'éàx'.lstrip('àé')
'\u3000wide\u00a0'.strip() ~ '|'
s.strip(1)
s.startswith('He') ~ s.endswith('ld') ~ s.startswith(('x', 'H')) ~ s.endswith(('a', 'b')) ~ s.startswith('')
s.startswith(1)
s.find('o') ~ s.find('z') ~ s.rfind('o') ~ u.find('世') ~ s.index('l') ~ s.count('l') ~ s.count('')
s.index('z')
s.replace('o', '0') ~ s.replace('l', 'L', 1) ~ s.replace('', '-') ~ e.replace('', 'x') ~ 'ab'.replace('', '-', 2)
s.isdigit() ~ '12'.isdigit() ~ 'ab'.isalpha() ~ 'a1'.isalnum() ~ ' '.isspace() ~ e.isspace()
'ABC'.isupper() ~ 'abc1'.islower() ~ '1'.isupper() ~ 'Ab'.islower()
'abc'.removeprefix('a') ~ 'abc'.removesuffix('c') ~ 'abc'.removeprefix('x') ~ '7'.zfill(3) ~ '-7'.zfill(4)
s.nope()
s.encode('utf-8')
s()
5()
xs[0] ~ xs[-1] ~ s[0] ~ s[-1] ~ u[1] ~ u[-1]
s[1:3] ~ s[:3] ~ s[3:] ~ s[::-1] ~ s[::2] ~ s[-3:] ~ s[:-3] ~ s[5:2] ~ s[100:] ~ s[-100:2]
u[1:3] ~ u[::-1] ~ u[7:9] ~ u[::3] ~ u[-1:]
xs[1:] ~ xs[:-1] ~ xs[::-1] ~ xs[::2] ~ xs[-1:0:-1] ~ xs[5:] ~ xs[2:0:-2] ~ (1, 2, 3)[1:]
xs[::0]
xs['a':]
n[1:]
d[1:]
missing[1:]
xs[9223372036854775807:] ~ xs[-9223372036854775807:] ~ xs[::9223372036854775807] ~ xs[::-9223372036854775807]
xs.0 ~ d.nested.x.1 ~ d.nested.x.2.y
s | length ~ xs | length ~ d | length ~ u | length ~ missing | length ~ xs | count
5 | length
n | length
ws | trim ~ '|' ~ 'xax' | trim('x') ~ n | trim ~ 5 | trim
s | upper ~ s | lower ~ 'aBC dE' | capitalize ~ n | upper ~ missing | upper
xs | join ~ xs | join(', ') ~ people | join('-', attribute='name') ~ mixed | join('|') ~ missing | join
5 | join
xs | first ~ xs | last ~ s | first ~ s | last ~ [] | first ~ [] | last
([] | first).x
d | first ~ d | last
xs | list ~ s | list ~ d | list ~ missing | list ~ (1, 2) | list
5 | list
xs | sort ~ xs | sort(reverse=true) ~ ['b', 'A', 'c'] | sort ~ ['b', 'A', 'c'] | sort(case_sensitive=true)
people | sort(attribute='name') | map(attribute='name') | list ~ people | sort(attribute='age', reverse=true) | map(attribute='name') | join
mixed | sort
['a', 'A', 'b', 'a', 1, 1.0, true] | unique | list
['a', 'A', 'b'] | unique(case_sensitive=true) | list
people | unique(attribute='age') | map(attribute='name') | list
xs | reverse | list ~ s | reverse ~ d | reverse | list ~ (xs | reverse)[0]
xs | min ~ xs | max ~ people | map(attribute='age') | max ~ [] | min ~ ['b', 'A'] | min ~ people | max(attribute='age')
xs | sum ~ people | sum(attribute='age') ~ [[1], [2]] | sum(start=[]) ~ [0.5, 1] | sum ~ [] | sum
['a'] | sum
people | map(attribute='name') | map('upper') | list
people | map(attribute='nope') | list
people | map(attribute='ok', default='?') | list
xs | map('string') | join('+') ~ ['a', 'b'] | map('replace', 'a', 'x') | list ~ n | map('upper') | list
xs | map | list
xs | map('nosuch') | list
people | selectattr('ok') | list ~ people | rejectattr('ok') | list | length
people | selectattr('ok', 'defined') | list | length ~ people | selectattr('age', 'equalto', 30) | map(attribute='name') | list
people | selectattr('age', '>', 26) | list | length ~ people | selectattr('name', 'in', ['Bob']) | list | length
people | rejectattr('age', 'eq', 30) | first
people | selectattr('age', 'eq', 30) | list | last
people | selectattr('a.b') | list
xs | select('odd') | list ~ xs | reject('odd') | list ~ mixed | select | list ~ mixed | select('string') | list ~ xs | select('>', 1) | list
xs | select('nosuch') | list
people | selectattr | list
(xs | map('string')) | length
xs | map('string') is iterable ~ xs | map('string') is sequence ~ xs is sequence ~ d is sequence ~ s is sequence ~ 5 is sequence
(xs | select('odd')) and 'always true'
d | items | list ~ missing | items | list
5 | items | list
d | dictsort ~ {'B': 1, 'a': 3, 'C': 2} | dictsort ~ {'B': 1, 'a': 3} | dictsort(true) ~ {'x': 2, 'y': 1} | dictsort(by='value') ~ {'x': 2, 'y': 1} | dictsort(reverse=true)
missing | default('dflt') ~ n | default('dflt') ~ e | default('dflt', true) ~ n | d('x', boolean=true) ~ missing | default ~ z | default(5, true)
'42' | int ~ ' 42 ' | int ~ '4.9' | int ~ 'x' | int ~ 'x' | int(7) ~ 4.9 | int ~ -4.9 | int ~ true | int ~ n | int ~ '-1_000' | int ~ '' | int ~ xs | int
missing | int
'1.5' | float ~ 'x' | float ~ 'x' | float(1) ~ 3 | float ~ '1e3' | float ~ n | float ~ '.5' | float
-3 | abs ~ neg | abs ~ -2.5 | abs
2.5 | round ~ 3.5 | round ~ 2.4 | round ~ 2.1 | round(method='ceil') ~ 2.9 | round(0, 'floor') ~ 7 | round ~ -0.4 | round
5 | string ~ n | string ~ xs | string ~ 1.0 | string ~ missing | string ~ d | string
s | replace('o', '0') ~ s | replace('l', 'L', 1) ~ 5 | replace(5, 6)
'a\nb\n\nc' | indent ~ '|' ~ 'a\nb\n\nc' | indent(2, true) ~ '|' ~ 'a\n\nb' | indent(1, blank=true) ~ '|' ~ '' | indent ~ '|' ~ 'x\n' | indent('> ', first=true)
5 | indent
html | escape ~ html | e | e ~ html | safe ~ (html | safe) + '<' ~ ('<' + (html | safe)) ~ ('<b>' | safe) ~ '<'
('x' | safe) is string ~ ('x' | safe) is escaped ~ 'x' is escaped ~ ('x' | safe) == 'x' ~ ('<' | safe | trim) ~ ('<' | safe | upper | length)
mixed | tojson
d | tojson ~ s | tojson ~ n | tojson ~ t | tojson ~ 1.5 | tojson ~ 1e100 | tojson ~ big | tojson ~ [] | tojson ~ {} | tojson ~ (1, 'x') | tojson
q | tojson ~ u | tojson ~ u | tojson(ensure_ascii=true) ~ html | tojson ~ '\u2028\x00\x1f' | tojson
{'a': {}, 'b': [], 'c': [1, {'x': none}]} | tojson(indent=2)
{'a': {}, 'b': [1]} | tojson(indent=0) ~ {'a': [1, 2]} | tojson(indent='\t') ~ [1] | tojson(indent=none)
{'b': 1, 'a': [1, 2]} | tojson(sort_keys=true) ~ {'b': 1, 'a': [1, 2]} | tojson(separators=(',', ':')) ~ {'b': [1, 2]} | tojson(indent=1, separators=(';', '='))
{1: 2, none: 3, true: 4, 1.5: 5} | tojson
{(1, 2): 3} | tojson
missing | tojson
[missing] | tojson
(xs | map('string')) | tojson
d.items() | tojson
s | tojson | length
(xs | tojson)[0]
'%s is %d, %r %%' % ('x', 5, 'y') ~ '%s' % 5 ~ '%s' % xs ~ 'no' % []
'%s %s' % 'x'
'%s' % (1, 2)
'%d' % 'x'
'%s-%s' | format('a', 1) ~ 'x' | format
'[%5s|%-5s|%.2s|%5.1s|%05s]' % ('ab', 'ab', 'abc', 'abc', 'ab')
'[%5s|%-6s|%.2s]' % ('äö', '日本', '😀ab')
'[%5d|%-5d|%05d|%+d|% d|%.3d|%+05d]' % (42, 42, 42, 42, 42, 7, -3)
'[%x|%X|%o|%#x|%#o|%x|%08X|%#06x]' % (255, 255, 8, 255, 8, -255, 48879, 255)
'[%d|%i|%u|%d]' % (3.99, -3.99, 7, true)
'[%f|%.2f|%8.3f|%-8.1f|%08.2f|%+.1f|%e|%E|%g|%G]' % (1.5, 2.675, 3.14159, 2.25, -1.5, 2, 12345.678, 0.00012, 1e20, 1e-7)
'[%.0f|%#.0f|%.10g|%#g|%5g]' % (2.5, 3, 0.1, 1.0, 3)
'[%c|%c|%3c]' % ('x', 233, 'y')
'[%*d|%-*d|%.*f|%*s]' % (5, 42, 5, 42, 2, 3.14159, -4, 'a')
'%(a)s-%(b)5d-%(a)-4s|' % {'a': 'x', 'b': 3}
'%(a(b))s' % {'a(b)': 1}
'%(zz)s' % {'a': 1}
'%(a)s' % 'x'
'%5%|%%' % ()
'%ld %hd %Lf' % (1, 2, 3)
'%r|%8r|%-8r|%.2r' % ('a', 'b', 'c', 'abc')
'%5' % 1
'%(a' % {'a': 1}
'%y' % 1
'%x' % 1.5
'%c' % 'ab'
'%f' % 'x'
'%*d' % ('a', 1)
'%5s' | format('ab') ~ '|%-4s|' | format(i)
'%s %s' | format('a')
s | truncate(5) ~ '|' ~ s | truncate(5, true) ~ '|' ~ s | truncate(9, false, '..', 0) ~ '|' ~ s | truncate(11)
'foo bar baz qux' | truncate(9) ~ '|' ~ 'foo bar baz qux' | truncate(9, true) ~ '|' ~ 'foo bar baz qux' | truncate(11) ~ '|' ~ 'foo bar baz qux' | truncate(11, false, '...', 0)
'foobarbazqux' | truncate(6, leeway=0) ~ '|' ~ 'foobarbazqux' | truncate(length=6, killwords=true, end='', leeway=0)
'äöüß 日本語 x' | truncate(5, leeway=0) ~ '|' ~ 'äöüß 日本語 x' | truncate(7, true, '…', 0)
missing | truncate(3) ~ '' | truncate(3)
s | truncate(2)
s | truncate(5, leeway=-1)
i | truncate(3)
'<b> c d e f' | safe | truncate(7, true, '<', 0)
s | truncate
'{}'.format(1)
'{} {}-{}'.format(s, i, f) ~ '{1}{0}{1}'.format('a', 'b') ~ '{x}|{y!r}'.format(x=1, y=s)
'{{}} {{{}}}'.format(i) ~ '{!r} {!s}'.format('q', 'q')
'{0[a]} {0.a} {1[0]}'.format({'a': 5}, [7]) ~ '{0[a b]}'.format({'a b': 1})
'{:>6}|{:<6}|{:^7}|{:*^9}|{:é>5}'.format('ab', 'ab', 'ab', 'ab', 'ab')
'{:6}|{:06}|{:<06}|{:6}'.format(42, 42, 42, 'x') ~ '{:05}|{:>05}'.format('a', 'b')
'{:.2}|{:5.1}|{:s}'.format('abc', 'äöü', 'x')
'{:d}|{:x}|{:X}|{:#x}|{:o}|{:#o}|{:b}|{:#b}|{:c}'.format(255, 255, 255, 255, 8, 8, 5, 5, 233)
'{:+d}|{: d}|{:-d}|{:+d}|{:=+6d}|{:<+6d}'.format(5, 5, 5, -5, -5, 5)
'{:,}|{:_}|{:,}|{:_x}|{:09,}|{:010_x}'.format(1234567, 1234567, -1234, 1048575, 1234, 65535)
'{:f}|{:.2f}|{:8.3f}|{:08.3f}|{:+.1f}|{:e}|{:.1E}|{:g}|{:G}|{:%}|{:.1%}'.format(1.5, 2.345, 3.14159, -3.14159, 2, 12345.678, 0.00012, 1e20, 1e-7, 0.25, 1)
'{}|{:}|{!s:>5}|{:>8}|{:<8}|'.format(1.0, 2.5, 3, 1.5, none) if false else '{}|{:}|{!s:>5}|{:>8}'.format(1.0, 2.5, 3, 1.5)
'{:.3}|{:.3}|{:.3}|{:.10}|{:.1}|{:.3}|{:8.2}'.format(3.14159, 1e20, 3.0, 123456.789, 9.96, 100.0, 0.5)
'{:,.2f}|{:_.1f}|{:012,.1f}'.format(1234567.891, 1234.5, 1234.5)
'{:{}}|{:{w}.{p}}|{:>{0}}'.format('a', 4, 3.14159, w=8, p=3) if false else '{:{}}|{:{w}.{p}f}'.format('a', 4, 3.14159, w=8, p=3)
'{}|{}|{}|{}|{}'.format(true, none, [1, 'a'], {'k': 'v'}, (1, 2)) ~ '{:d}|{:>6}'.format(true, true)
'{} and {missing}'.format(1)
'{} {}'.format(1)
'{0} {}'.format(1, 2)
'{:d}'.format('a')
'{:x}'.format(1.5)
'{:.2d}'.format(5)
'{:>5}'.format(none)
'{:q}'.format(5)
'{'.format()
'}'.format()
'{a.b.c}'.format(a={'b': {'c': 3}}) ~ '{a[b][0]}'.format(a={'b': [9]})
'{0.x}'.format({}) ~ '|'
'{:=5}'.format('a')
'{:+}'.format('a')
'{:,}'.format('a')
'{:5c}|{:<5c}|'.format(65, 66)
'{}'.format('{}') ~ '{}'.format()
s.ljust(14) ~ '|' ~ s.rjust(14, '.') ~ '|' ~ 'ab'.center(7, '-') ~ 'abc'.center(6, '-') ~ 'äb'.ljust(3) ~ '|' ~ s.ljust(2)
s.isascii() ~ 'é'.isascii() ~ ''.isascii()
s.ljust(5, 'ab')
s.center()
'\x7f' | tojson ~ '\x7f' | tojson(ensure_ascii=true) ~ 'a\x7fé😀' | tojson(ensure_ascii=true)
s is string ~ i is string ~ i is number ~ f is number ~ t is number ~ i is integer ~ t is integer ~ f is float ~ i is float
t is boolean ~ i is boolean ~ t is true ~ i is true ~ 1 is true ~ z is false ~ false is false
n is none ~ missing is none ~ n is defined ~ missing is defined ~ missing is undefined ~ d.zz is defined ~ d.a is defined
d is mapping ~ xs is mapping ~ s is mapping ~ missing is mapping
s is iterable ~ i is iterable ~ d is iterable ~ n is iterable ~ missing is iterable ~ missing is sequence ~ range(3) is sequence
i is odd ~ i is even ~ i is divisibleby 7 ~ i is divisibleby(2) ~ s is odd
i is odd ~ i is even ~ i is divisibleby 7 ~ i is divisibleby(2) ~ 2.0 is even
'abc' is lower ~ 'ABC' is upper ~ 'aB' is lower ~ '1' is lower ~ 5 is upper
1 is in xs ~ 9 is in xs ~ 1 is not in xs ~ 1 is eq 1 ~ 1 is ne 1 ~ 2 is gt 1 ~ 2 is lt 1 ~ 2 is ge 2 ~ 2 is le(1) ~ 1 is sameas true ~ true is sameas true ~ n is sameas none
range is callable ~ s is callable ~ s.upper is callable ~ missing is callable
1 is defined and 2 is defined or false
not 1 is none ~ (not (1 is none)) ~ 1 is not none
s is defined == true
s is nosuchtest
s | nosuchfilter
s | wordcount
[1, 2, 3] | first + 4
'a' ~ 'b' + 'c' ~ 'd'
-xs | first
-i | abs ~ +i ~ - - i
-s
+none
-missing
i | string + 'x'
range(5) | list ~ range(2, 5) | list ~ range(5, 0, -2) | list ~ range(0) | list ~ range(3) | length ~ range(10)[3] ~ range(3)[-1]
range(1000000)
range(1, 2, 0)
range('a')
range(99999999999999) | list
dict(a=1, b='x') ~ dict() ~ dict({'x': 1}, y=2) ~ dict([('k', 'v')])
dict(5)
namespace(a=1).a ~ namespace().a ~ namespace({'x': 2}).x ~ namespace(a=1)['a']
namespace().a.b
strftime_now('%Y-%m-%d %H:%M:%S %a %A %b %B %j %y %p %I %e|%-d %%')
strftime_now is defined ~ raise_exception is defined ~ range is defined ~ cycler is defined ~ nope is defined
raise_exception('it failed: ' ~ s)
raise_exception('multi\nline «é» "q"')
raise_exception(5)
raise_exception()
'\x41\u00e9\U0001F600\101\n\t\\\'\"\q' "adjacent" 'strings'
'a
b'
1_000 + 0 ~ 1.5e3 ~ 2E-2 ~ 1_0.5_0
1, 2, 'x'
1,
()
(1)
(1,)
[1, 2,]
{'a': 1,}
d.nested.x | map(attribute='y') | list
d.nested['x'] | length
{'a': [1, 2]}.a[1] ~ [1, 2][0] ~ 'abc'[1] ~ (1, 2)[1] ~ {'x': {'y': 3}}['x']['y']
[x, y] if false else 'ok'
[s, s | length, [s] | length]
(s | length) * 2 ~ s | length * 2
xs == [3, 1, 2] and d.a == 2 and s == 'Hello World'
s.split(' ') | map('upper') | join('_')
'a' in ['a', 'b'] and 'c' not in ['a', 'b']
not 'a' in ['a']
people[0].name ~ people[-1]['name'] ~ people[0]['missing'] ~ people[0].get('name')
people | map(attribute='name') | first ~ people | map(attribute='age') | sum
people | attr('x')
s | attr('upper') is defined
loop is defined
self is defined
true ~ True ~ false ~ False ~ none ~ None
true.real
(1, 2) | tojson ~ [(1, 2), [3]] | string
9223372036854775807 + 0
'\0' == '\x00' ~ '\0' | length ~ '\07' | length ~ '\1234' ~ '\8' ~ '\18' | length
""".strip("\n").split("\n")

# Each entry is a template, or (template, extra variables).
STATEMENTS = [
    "plain text\nwith lines\n",
    "trailing newline kept once\n\n",
    "",
    "\n",
    "a\r\nb\rc\n",
    "{{ 'a\r\nb' }}",
    "{# comment #}x{# another\nline #}\ny",
    "a {#- trims -#} b",
    "  {# indented #}\nx",
    "  {#+ kept #}\nx {# c +#}\ny",
    "{% if t %}\nyes\n{% endif %}\nend",
    "  {% if t %}  \n  yes\n  {% endif %}\nend",
    "x  {% if t %}y{% endif %}",
    "\t{%+ if t %}y{% endif +%}\nz",
    "  {%- if t -%}  \n  yes  \n  {%- endif -%}  \nend",
    "a\n\n  {%- if t %}\n\nb\n{%- endif %}\n\nc",
    "  {{ i }}  \n  {{- i -}}  \n {{ i }}\n",
    "{{ i }}\n{{ i }}\n\n{{ i }}",
    "{%- if t -%}a{%- else -%}b{%- endif -%}",
    "{% raw %}{{ x }} {% if %} {# c #}{% endraw %}",
    "a\n  {% raw %}\n  {{ x }}\n  {% endraw %}\nb",
    "a {%- raw -%}  {{ x }}  {%- endraw -%} b",
    "a\n {%+ raw %} x {%+ endraw +%}\nb",
    "{% raw %}never ends",
    "{# never ends",
    "{{ i\u00a0}}{{\u3000i }}",
    "ends in {#",
    "ends in {% raw %}",
    "{% set ns.x = missing.y %}",
    "{{ 'never ends }}",
    "{% if t %}never ends",
    "{{ i",
    "{{ }}",
    "{% %}",
    "{% nosuchtag %}",
    "{% endif %}",
    "{% if t %}{% endfor %}",
    "{% for %}{% endfor %}",
    "{% for x xs %}{% endfor %}",
    "{{ 1 + }}",
    "{{ (1 }}",
    "{{ [1) }}",
    "{{ 1 ] }}",
    "{{ a b }}",
    "{{ a.  }}",
    "{{ 'a' | }}",
    "{{ x is }}",
    "{{ x is defined is defined }}",
    "{{ @ }}",
    "{{ {1, 2} }}",
    "{{ f(a=1, 2) }}",
    "{% set 1 = 2 %}",
    "{% set x.y.z = 2 %}",
    "{% set a + b = 2 %}",
    "{% break %}",
    "{% for x in xs %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}",
    "{% macro m(a=1, b) %}{% endmacro %}",
    "{% call 5 %}{% endcall %}",
    "{% if t: %}colon{% endif %}",
    "{% if z %}a{% elif n %}b{% elif i == 7 %}c{% else %}d{% endif %}",
    "{% if z %}a{% elif n %}b{% else %}{% if t %}nested{% endif %}{% endif %}",
    "{% if missing %}a{% endif %}{% if not missing %}b{% endif %}",
    "{% for x in xs %}{{ x }},{% endfor %}",
    "{% for x in [] %}{{ x }}{% else %}empty{% endfor %}",
    "{% for x in missing %}{{ x }}{% else %}none{% endfor %}",
    "{% for x in n %}{{ x }}{% endfor %}",
    "{% for x in 5 %}{{ x }}{% endfor %}",
    "{% for c in u %}[{{ c }}]{% endfor %}",
    "{% for k in d %}{{ k }} {% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in d|items %}{{ loop.index }}{{ k }};{% endfor %}",
    "{% for a, b in [(1, 2), [3, 4], 'xy'] %}{{ a }}-{{ b }} {% endfor %}",
    "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for a, b in [(1, 2, 3)] %}{% endfor %}",
    "{% for a, b in [(1,)] %}{% endfor %}",
    "{% for a, b in [5] %}{% endfor %}",
    "{% for x in xs if x > 1 %}{{ loop.index }}:{{ x }}/{{ loop.length }}{{ ' last' if loop.last }} {% endfor %}",
    "{% for x in xs if x > 9 %}x{% else %}nothing{% endfor %}",
    "{% for x in xs %}{{ loop.index }} {{ loop.index0 }} {{ loop.first }} {{ loop.last }} {{ loop.length }} {{ loop.revindex }} {{ loop.revindex0 }} {{ loop.depth }} {{ loop.depth0 }}\n{% endfor %}",
    "{% for x in xs %}{{ loop.previtem is defined }}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }}{{ loop.nextitem is defined }} {% endfor %}",
    "{% for x in xs %}{{ loop.previtem.foo }}{% endfor %}",
    "{% for x in xs %}{{ loop.cycle('a', 'b') }}{% endfor %}{% for x in [1, 1, 2] %}{{ loop.changed(x) }}{% endfor %}",
    "{% for x in xs %}{{ loop.nosuch }}|{% endfor %}",
    "{% for x in xs %}{% for y in 'ab' %}{{ loop.index }}{{ x }}{{ y }} {% endfor %}{{ loop.index }};{% endfor %}",
    "{% for x in xs %}{% set outer = loop %}{% for y in 'ab' %}{{ outer.index }}{{ loop.index }} {% endfor %}{% endfor %}",
    "{% for x in xs %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in xs %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}after",
    "{% for x in xs %}{% break %}{% else %}else{% endfor %}",
    "{% for x in xs %}{% continue %}{% else %}else{% endfor %}",
    "{% for x in xs %}{% if x == 1 %}{% break %}{% endif %}{% else %}else{% endfor %}",
    "{% for x in xs %}{% for y in xs %}{% if y == 1 %}{% break %}{% endif %}{{ y }}{% endfor %};{% endfor %}",
    "{% for x in xs recursive %}{{ x }}{% endfor %}",
    "{% for x in range(3) %}{{ x }}{% endfor %}{% for x in range(3, 0, -1) %}{{ x }}{% endfor %}",
    "{% for x in xs | reverse %}{{ x }}{{ loop.length }}{% endfor %}",
    "{% for x in xs[::-1] %}{{ loop.index0 }}{{ x }}{% endfor %}",
    "{% for x in xs | map('string') %}{{ x }}{{ loop.last }}{{ loop.length }} {% endfor %}",
    "{% set g = xs | map('string') %}{% for x in g %}{{ x }}{% endfor %}|{% for x in g %}{{ x }}{% endfor %}|{{ g | list }}",
    "{% set g = xs | map('string') %}{{ g | first }}{{ g | list }}",
    "{% set g = xs | map('string') %}{{ g | first }}{% for x in g %}{{ loop.length }}{% endfor %}",
    "{% set g = xs | map('string') %}{% for x in g %}{{ loop.length }}{% for y in g %}{{ loop.length }}{% endfor %}{% endfor %}",
    "{% set g = xs | map('string') %}{% for x in g %}{{ x }}{% break %}{% endfor %}|{{ g | join }}",
    "{% set g = xs | map('string') %}{{ '1' in g }}{{ g | list }}",
    "{% set v = d.keys() %}{{ v | list }}{{ v | list }}{{ v | length }}",
    "{% for x in xs if x != 1 %}{% if loop.first %}{{ loop.length }}{% endif %}{{ x }}{{ loop.revindex }}{% endfor %}",
    "{% set ns = namespace(seen=[]) %}{% for x in [1, 2, 3, 4] if x not in ns.seen %}{% set ns.seen = [x + 1] %}{{ x }}{% endfor %}",
    "{% for loop in xs %}{% endfor %}",
    "{% for x in 1, 2, 3 %}{{ x }}{% endfor %}",
    "{% for x in (xs if t else []) %}{{ x }}{% endfor %}",
    "{% for x in xs if t else [] %}{{ x }}{% endfor %}",
    "{% set x = 1 %}{{ x }}{% set x = x + 1 %}{{ x }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set a, b = b, a %}{{ a }}{{ b }}",
    "{% set a, b = [1] %}",
    "{% set t2 = 1, 2 %}{{ t2 }}",
    "{% set x = 1 %}{% for y in xs %}{% set x = y %}{{ x }}{% endfor %}{{ x }}",
    "{% set x = 0 %}{% for y in xs %}{{ x }}{% set x = x + y %}{{ x }} {% endfor %}{{ x }}",
    "{% for y in xs %}{% set last = y %}{% endfor %}{{ last is defined }}",
    "{% if t %}{% set inside = 1 %}{% endif %}{{ inside }}",
    "{% if z %}{% set inside = 1 %}{% endif %}{{ inside is defined }}",
    "{% if z %}{% set i = 1 %}{% endif %}{{ i }}",
    "{% for x in xs %}{{ later }}{% endfor %}{% set later = 1 %}{{ later }}",
    ("{% for x in xs %}{{ later }}{% endfor %}{% set later = 1 %}{{ later }}", {"later": "given"}),
    ("{{ later }}{% for x in xs %}{{ later }}{% endfor %}{% set later = 1 %}{{ later }}", {"later": "given"}),
    ("{% for x in xs %}{{ later }}{% endfor %}{% if z %}{% set later = 1 %}{% endif %}{{ later }}", {"later": "given"}),
    ("{% for x in xs %}{% for y in 'a' %}{{ v }}{% endfor %}{% set v = x %}{{ v }}{% endfor %}", {"v": "V"}),
    ("{% macro m() %}{{ v }}{% endmacro %}{{ m() }}{% set v = 2 %}{{ m() }}", {"v": "V"}),
    ("{% macro m() %}{{ v }}{% endmacro %}{{ m() }}{{ v }}{% set v = 2 %}{{ m() }}", {"v": "V"}),
    "{% set ns = namespace(x=0) %}{% for y in xs %}{% set ns.x = ns.x + y %}{% endfor %}{{ ns.x }}",
    "{% set ns = namespace() %}{% set ns.a = [] %}{% set ns.a = ns.a + [1] %}{{ ns.a }}{{ ns.b is defined }}",
    "{% set x = 5 %}{% set x.y = 1 %}",
    "{% set nope.y = 1 %}",
    "{% set d.y = 1 %}",
    "{% set x %}block {{ i }}{% endset %}[{{ x }}]",
    "{% set x | upper | trim %} block {{ s }} {% endset %}[{{ x }}]",
    "{% set x %}\n  indented\n{% endset %}[{{ x }}]",
    "{% set x %}{% set y = 1 %}{{ y }}{% endset %}{{ x }}{{ y is defined }}",
    "{% filter upper %}text {{ s }}{% endfilter %}",
    "{% filter replace('a', 'b') | trim %}  banana {% endfilter %}|",
    "{% with a = 1, b = i %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}",
    "{% set a = 5 %}{% with a = 1, b = a %}{{ a }}{{ b }}{% endwith %}{{ a }}",
    "{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q is defined }}{{ q }}",
    "{% macro m(a, b=2, c=a) %}{{ a }}|{{ b }}|{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(1, c=4) }} {{ m(b=1, a=2) }}",
    "{% macro m(a) %}[{{ a }}]{{ a is defined }}{% endmacro %}{{ m() }}",
    "{% macro m(a) %}{{ a.x }}{% endmacro %}{{ m() }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(q=2) }}",
    "{% macro m(n) %}{{ n }}{% if n > 0 %},{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(5) }}",
    "{% macro m() %}{{ x }}{% endmacro %}{% set x = 3 %}{{ m() }}",
    "{% macro m() %}{% set x = 9 %}{{ x }}{% endmacro %}{% set x = 3 %}{{ m() }}{{ x }}",
    "{% for x in xs %}{% macro m() %}{{ x }}{% endmacro %}{{ m() }}{% endfor %}",
    "{% macro m() %}a{{ caller() }}b{% endmacro %}{% call m() %}mid{{ i }}{% endcall %}",
    "{% macro m() %}{{ caller('x') }}{{ caller('y') }}{% endmacro %}{% call(v) m() %}<{{ v }}>{% endcall %}",
    "{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}",
    "{% macro m() %}x{% endmacro %}{% call m() %}y{% endcall %}",
    "{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}{% call m() %}{% endcall %}",
    "{{ m() }}{% macro m() %}late{% endmacro %}",
    "{% macro m(x) %}{{ x }}{% endmacro %}{{ m('a') | upper }}{{ (m('a') ~ m('b')) | length }}{{ xs | map('string') | list }}",
    "{% macro a() %}A{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}",
    "{% generation %}gen {{ i }}{% set g = 1 %}{% endgeneration %}\n{{ g is defined }}",
    "{% if 'x' is defined and xs|length == 3 and not (n or z) %}complex{% endif %}",
    "{%if t%}tight{%endif%}{{i}}{{-i-}}{%set q=1%}{{q}}",
    "{% if t %}{{ raise_exception('stop here') }}{% endif %}never",
    "{{ 'a' if t else raise_exception('no') }}",
    "{% set x = none %}{{ x }}{% set x = x or 'dflt' %}{{ x }}",
    "{% set x = missing %}{{ x is defined }}{{ x }}",
    "{% set x = missing %}{{ x.y }}",
    "{{ {'a': {'b': {'c': 1}}}.a.b.c }} {{ {} }} {{ {'x': {}} }}",
    "{{ '{{' }}{{ '}}' }}{{ '{%' }}{{ \"%}\" }}",
    "{{ {'a': '}}'}['a'] }}",
    "{ {{ i }} } {{ '{' }}%} }} #}",
    "line1\n{% set a = 1 %}\nline2\n    {% set b = 2 %}\nline3 {% set c = 3 %}\nline4",
    "    {%- set a = 1 %}\n    {%- set b = 2 -%}\n    x",
    "{{ i }}{# c #}\n{{ i }}",
    "{%- for x in xs %}\n    {{- x }}\n{%- endfor %}\n",
    "<{% for x in xs %}\n  {{ x }}\n{% endfor %}>",
    "\n\n{% if t %}\n\nx\n\n{% endif %}\n\n",
    " \n {%- if t %} \n x \n {%- endif %} \n ",
    "\u00a0{%- if t %}nbsp{% endif %}\u3000{%- if t %}wide{% endif %}",
    "{% do xs.append(1) %}",
    "{% include 'x' %}",
    "{% extends 'x' %}",
    "{{ super() }}",
    "{% set x = xs %}{% set y = x + [4] %}{{ x }}{{ y }}",
    "{% set msgs = [{'role': 'user'}, {'role': 'system'}] %}{% for m in msgs | selectattr('role', 'ne', 'system') %}{{ m.role }}{% endfor %}",
    "{% for m in people %}{% if not loop.last and people[loop.index].age == m.age %}same{% else %}diff{% endif %} {% endfor %}",
    "{% for m in people -%}\n {{ m.name }}\n{%- if not loop.last %}, {% endif %}\n{%- endfor %}.",
    "{{ people | tojson(indent=2) }}",
    "{%- set ns = namespace(out='') -%}{%- for p in people -%}{%- set ns.out = ns.out ~ p.name[0] -%}{%- endfor -%}{{ ns.out }}",
    "{{ '<|' ~ 'x' ~ '|>' }}<|im_start|>{{ s }}<|im_end|>",
    "{% if s == 'Hello World' %}eq{% endif %}{% if s != 'x' %}ne{% endif %}{% if i >= 7 and i <= 7 %}r{% endif %}",
    "{% set content = s.split(' ')[1].strip('d') %}{{ content }}{{ content[-1] == 'l' }}",
    "{{ [1, 2, 3] | length == 3 }}{{ (xs | length) > 2 }}{{ xs | length > 2 }}",
    "{{ d.a if d.a is defined else 'no' }}{{ d['zz'] if d['zz'] is defined else 'no' }}",
]


# Well-formed templates with features that are intentionally not supported. The interpreter must
# report an error that says so.
UNSUPPORTED = {
    "{{ d.items }}",
    "{{ s.upper() ~ s.lower() ~ s.title() ~ s.capitalize() ~ s.swapcase() }}",
    "{{ 'straße ñandú ŸÿƂ'.upper() }}",
    "{{ s.encode('utf-8') }}",
    "{% do xs.append(1) %}",
    "{% include 'x' %}",
    "{% extends 'x' %}",
    "{{ s | wordcount }}",
    "{{ self is defined }}",
    "{{ true.real }}",
    "{{ (-2) ** 2.5 }}",
    "{% for x in xs recursive %}{{ x }}{% endfor %}",
    "{% for loop in xs %}{% endfor %}",
}


# Each filter, method and test is tried on each value, and each operator on each pair of operands.
VALUES = ["''", "'aB c'", "'12abc'", "' 7 '", "'-0.50'", "'xyx'", "0", "-3", "2.5", "true", "none", "[]", "[2, 1, 2]",
          "['b', 'A']", "{}", "{'b': 1, 'A': 2}", "(3,)", "missing"]
FILTERS = ["abs", "capitalize", "default(9)", "default(9, true)", "escape", "float(5)", "indent(2, true)", "int(5)",
           "lower", "replace('x', 'yy', 1)", "round", "round(0, 'floor')", "round(0, 'ceil')", "string", "title",
           "tojson", "trim", "trim('x')", "string | truncate(2, true, '.', 0)", "upper", "count", "dictsort",
           "dictsort(true, 'value', true)", "first", "join('-')", "last", "length", "list", "map('string') | list",
           "max", "min", "reject('string') | list", "reverse | list", "select | list", "sort", "sort(true, true)", "sum",
           "unique | list", "items | list"]
METHODS = ["capitalize()", "count('x')", "endswith('c')", "find('x')", "index('x')", "isalnum()", "isalpha()", "isdigit()",
           "islower()", "isspace()", "isupper()", "lower()", "lstrip('x-')", "partition('x')", "removeprefix('x')",
           "removesuffix('x')", "replace('x', '', 1)", "rfind('x')", "rindex('x')", "rpartition('x')", "rsplit('x', 1)",
           "rstrip('x ')", "split('x', 1)", "splitlines()", "startswith('x')", "strip()", "title()", "upper()",
           "zfill(5)", "get('b', 5)", "keys() | list", "values() | list"]
TESTS = ["boolean", "callable", "defined", "divisibleby(2)", "escaped", "even", "false", "float", "ge 1",
         "in [0, 'x', none]", "integer", "iterable", "le 1", "lower", "mapping", "none", "number", "odd", "sameas true",
         "sequence", "string", "true", "upper"]
OPERATORS = ["+", "-", "*", "/", "//", "%", "**", "==", "!=", "<", "<=", ">", ">=", "in", "and", "or", "~"]
OPERANDS = ["7", "-2", "2.5", "0", "true", "'ab'", "'b'", "[1]", "[1,2]", "(1,)", "{}", "none", "missing"]
MANY = "{" + ", ".join(f"'k{i}': {i}" for i in range(20)) + "}"


def surplus(calls, works):
    """Returns each call with more arguments than it takes, with an unknown one by name, and without any. Its value
    is one with which the call itself works."""
    out = []
    for c in calls:
        bare = re.match(r"( is |[|.])\w+", c)[0]
        value = next((v for v in reversed(VALUES) if works(f"(({v}){c})")), None)
        for a in ("(1, 2, 3, 4, 5, 6, 7)", "(zz=1)", "()") if value else ():
            out.append((bare + a, f"(({value}){bare}{a}{' | list' if c.endswith('| list') else ''})"))
    return out


def products(works):
    """Yields lists of [name, expression]: the name is that of what is tried."""
    calls = ["|" + f for f in FILTERS] + ["." + m for m in METHODS] + [" is " + t for t in TESTS]
    for v in VALUES:
        yield [(c, f"(({v}){c})") for c in calls]
    yield surplus([c for c in calls if not c.startswith(("|map", "|select", "|reject", "|string |"))], works)
    for o in OPERATORS:
        for a in OPERANDS:
            yield [(o, f"(({a}) {o} ({b}))") for b in OPERANDS]


def units():
    """Yields (source, variables beyond VARS)."""
    more = [f"{MANY}.k0 ~ {MANY}['k19'] ~ ({MANY} | length) ~ ({MANY} | list)", "(-2) ** 2.5", "0.0 ** -1",
            "2.0 ** -1 ~ (-2.0) ** 2 ~ 0 ** 0 ~ 0.0 ** 2"]
    out = [("{{ " + e + " }}", {}) for e in EXPRESSIONS + more]
    return out + [s if isinstance(s, tuple) else (s, {}) for s in STATEMENTS]
