"""The chat templates of `longreach serve` against jinja2, set up as transformers sets it up.

    chat_peer.py RENDER_CHAT

Templates in the dialects of published models, written here, and small ones for each part of the language are rendered by
both with several conversations. Texts must be equal; where one refuses, so must the other. Exit code 77, a skipped
test, without the package.
"""
import json, subprocess, sys

try:
    import jinja2
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)


class Raised(Exception):
    pass


def raise_exception(message):
    raise Raised(message)


def environment():
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    made.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    made.globals["raise_exception"] = raise_exception
    return made


def turn(role, content, **more):
    return {"role": role, "content": content, **more}


CONVERSATIONS = [
    [turn("user", "Hello")],
    [turn("system", " Be brief. "), turn("user", "  What is {{ 6 * 7 }}?\n")],
    [turn("user", "a"), turn("assistant", "b"), turn("user", "{% raise %} \u00e9\u4e16 \u2003end\u3000")],
    [turn("system", "s"), turn("user", "1"), turn("assistant", " <think>\nwhy\n</think>\n\n2 "), turn("user", "3", name="ann")],
    [turn("assistant", "first"), turn("user", "")],
    [turn("user", "x"), turn("user", "y")],
    [turn("tool", "{\"k\": 1}"), turn("user", "quote \" back \\ tab\t nul")],
]

# The shapes of published templates.
DIALECTS = {
    "chatml": """{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    "smollm": """{% for message in messages -%}
    {% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nYou help.<|im_end|>\\n' }}{% endif %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' -}}
{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
""",
    "llama3": """{% set loop_messages = messages %}{% for message in loop_messages %}
{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' %}
{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}
{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}""",
    "llama3_dates": """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not date_string is defined %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{#- The system message comes first. -#}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none and not tools_in_user_message %}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{%- endfor %}
{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" + system_message + "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}{{- raise_exception("one call") }}{%- endif %}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable and message.content is not string %}
            {{- message.content | tojson }}
        {%- else %}{{- message.content }}{%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
    "qwen2.5": """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou help.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' }}{{- message.content }}{{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
""",
    "qwen3": """{%- set ns = namespace(multi=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi = false %}{%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}{%- set content = message.content %}{%- else %}{%- set content = '' %}{%- endif %}
    {%- if message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and (loop.last or (not loop.last and reasoning_content)) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}""",
    "gemma": """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}
{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}
{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}""",
    "gemma3": """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\\n\\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}{{ raise_exception("alternate") }}{%- endif -%}
    {%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
        {%- endfor -%}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\\n'}}
{%- endif -%}
""",
    "mistral": """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("roles must alternate") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {%- for tool in tools %}
                {%- for key, val in tool.items() if key != "return" %}{{- '"' + key + '": ' + val|tojson }}{%- endfor %}
            {%- endfor %}
        {%- endif %}
        {%- if (message == user_messages[-1]) and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token }}
    {%- elif message["role"] == "tool" %}
        {%- if message.content is defined and message.content.content is defined %}
            {%- set content = message.content.content %}
        {%- else %}
            {%- set content = message.content %}
        {%- endif %}
        {{- '[TOOL_RESULTS] {"content": ' + content|string + "}[/TOOL_RESULTS]" }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported!") }}
    {%- endif %}
{%- endfor %}
""",
    "zephyr": """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>
'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}""",
    "llama2": """{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}{% set rest = messages %}{% set system_message = false %}{% endif %}
{% for message in rest %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate: ' ~ loop.index) }}{% endif %}
{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}
{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}""",
    "vicuna": """{% for m in messages %}{% if not loop.first %}{{ '\\n' }}{% endif %}{{ m.role.title() }} ({{ m.role | upper }}): {{ m['content'] | trim }}{{ ' ' ~ m.name if m.name is defined }}{% endfor %}""",
}

# A line or two for each part of the language, with the variables below.
PARTS = r"""
{{ 1 + 2 * 3 - 4 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 2 - 3 - 4 }} {{ -n }} {{ - n + 1 }}
{{ 'a' ~ 1 ~ none ~ true ~ nothing }}|{{ "q\"\n\t\\\x41\u00e9" }}|{{ 'two' ' parts' }}
{{ 1 == 1.0 }}
{{ n == 3 and 'x' or 'y' }} {{ '' or nothing or 'z' }} {{ not n }} {{ not not n }} {{ 0 and 1 }}
{{ 1 < 2 }} {{ 'a' < 'b' }} {{ 'b' >= 'b' }} {{ 2 != 2 }} {{ true == 1 }} {{ none == false }} {{ nothing == nothing }}
{{ 'b' in 'abc' }} {{ 'x' not in s }} {{ 2 in [1, 2] }} {{ 'k' in d }} {{ 'z' in d }} {{ 1 in nothing }}
{{ 'yes' if n > 2 else 'no' }} {{ 'yes' if n > 5 }}| {{ 'a' if false else 'b' if false else 'c' }}
{{ s[0] }}{{ s[-1] }}{{ s[1:3] }}{{ s[::-1] }}{{ s[:-1] }}{{ s[-2:] }}{{ s[5:1:-2] }}|{{ s[99] }}|{{ s[3:99] }}
{{ l[0] }} {{ l[-1] }} {{ l[9] }} {{ l[1:]|join('-') }} {{ l[::-2]|join }} {{ l.0 }}
{{ d.k }} {{ d['k'] }} {{ d.missing }} {{ d['missing'] is defined }} {{ d.get('k') }} {{ d.get('z', 'other') }} {{ d.get('z') }}
{{ nothing.x }}
{{ nothing['x'] }}
{{ nothing }}|{{ nothing|length }}|{{ nothing|default('d') }}|{{ ''|default('d') }}|{{ ''|default('d', true) }}|{{ none|d('x', boolean=true) }}
{{ s|length }} {{ l|length }} {{ d|count }} {{ 'abc'|upper }} {{ 'ABC def'|lower }} {{ 'abc def'|capitalize }} {{ 'abc dEF'|title }} {{ '"b"abc dEF-gh (x 1y [z'|title }} {{ '"b"abc dEF-gh (x 1y [z'.title() }}
{% if n if n else n %}a{% endif %}
{{ '  x y '|trim }}| {{ 'xxaxx'|trim('x') }} {{ ' a '.strip() }} {{ 'aab'.lstrip('a') }} {{ 'baa'.rstrip('a') }} {{ 5|trim }}
{{ 'a,b,,c'.split(',')|join('|') }} {{ ' a  b c '.split()|join('|') }} {{ 'a,b,c'.split(',', 1)|join('|') }} {{ 'a b  c d '.split(none, 2)|join('|') }} {{ ''.split(',')|length }} {{ ''.split()|length }}
{{ s.startswith('h') }} {{ s.endswith('x') }} {{ 'ab'.upper() }} {{ 'aXbX'.replace('X', 'yy') }} {{ 'aXb'|replace('X', '') }} {{ 'abc'.title() }} {{ 'aBC'.capitalize() }}
{{ d|tojson }} {{ l|tojson }} {{ s|tojson }} {{ {'a': [1, {'b': none}], 'c': {}}|tojson }} {{ 'é"\\'|tojson }}
{{ {'a': [1, {'b': none}], 'c': {}, 'e': []}|tojson(indent=2) }}
{{ l|first }} {{ l|last }} {{ s|first }} {{ s|last }} {{ []|first }} {{ ''|last }}
{{ messages|map(attribute='role')|join(',') }} {{ messages|selectattr('role', 'equalto', 'user')|list|length }} {{ messages|rejectattr('role', 'in', ['user', 'tool'])|map(attribute='role')|join(',') }} {{ messages|selectattr('name')|list|length }} {{ [1, 0, 2]|select|join }} {{ [1, 2, 3]|reject('odd')|join }} {{ [1, none]|select('none')|list|length }}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for p in d|items %}{{ p[0] }}{% endfor %}{{ d.keys()|join }}{{ d.values()|list|length }}{{ d|list|join }}
{% for c in 'aé世' %}[{{ c }}]{% endfor %}{% for k in d %}{{ k }}{% endfor %}{% for x in nothing %}a{% else %}none{% endfor %}
{% for x in range(5) if x is odd %}{{ loop.index }}{{ x }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }} {% endfor %}{{ range(2, 8, 3)|list|tojson }}{{ range(3, 0, -1)|join }}{{ range(0)|list|length }}
{% for x in [1, 2, 3, 4] %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 4 %}{% break %}{% endif %}{{ x }}{{ loop.previtem }}{{ loop.nextitem }}{% endfor %}
{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}
{% if true %}{% set y = 2 %}{% endif %}{{ y }} {% for i in [1] %}{% set z = 3 %}{% endfor %}{{ z }}{{ i }}
{% set ns = namespace(a=1, b='t') %}{% for i in [1, 2] %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}{{ ns.b }}{{ ns.c }}{{ ns.a is defined }}
{% set t %}in {{ n }} block{% endset %}[{{ t }}]{{ t|length }}
{% for i in [1, 2] %}{% for j in [3, 4] %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}{{ loop }}
{{ n is defined }} {{ nothing is undefined }} {{ none is none }} {{ s is string }} {{ n is number }} {{ n is integer }} {{ true is boolean }} {{ true is true }} {{ 1 is true }} {{ false is false }} {{ d is mapping }} {{ l is sequence }} {{ s is iterable }} {{ n is iterable }} {{ n is odd }} {{ n is even }} {{ n is eq 3 }} {{ n is ne(3) }} {{ n is in [3] }} {{ n is not none }} {{ true is integer }} {{ true is number }} {{ d is iterable }} {{ nothing is string }} {{ nothing is iterable }} {{ none is defined }}
{{ strftime is defined }} {{ range is defined }} {{ raise_exception is defined }}
{% if n == 1 %}a{% elif n == 3 %}b{% elif n == 3 %}c{% else %}d{% endif %} {% if nothing %}a{% else %}e{% endif %}
{{ (1, 2) }}
{{ [1, 'a'] }}
{{ 'a' + 1 }}
{{ n + none }}
{{ s + nothing }}
{{ d.k.upper() }}
{{ nothing.upper() }}
{{ n.upper() }}
{{ n[0] }}|{{ none.x }}|{{ n.x }}|{{ none['x'] }}
{{ 'x' * 3 }}
{{ 5 / 2 }}
{{ s|nosuch }}
{{ s is nosuch }}
{{ s.nosuch() }}
{{ nosuch() }}
{% nosuch %}
{% if n %}
{% for x in n %}{% endfor %}
{{ raise_exception('no: ' + s) }}
{{ 1 // 0 }}
{{ 'a' < 1 }}
{{ 'a' in 1 }}
{{ 1 in 'a' }}
{{ {'a': 1}['a'] }} {{ {'a': 1}.a }} {{ {} == {} }} {{ {'a': [1]} == {'a': [1]} }} {{ [1, 2] == [1, 2] }} {{ ([1] + [2])|join }}
{{ "{{ '}}' }}" }} {{ '%}' }} {{ {'a': {'b': 1}}['a']['b'] }} {# a {{ comment }} #}after
{{ true }}{{ True }}{{ false }}{{ None }}{{ none }}
"""

# Where white space goes.
SPACES = ["  {% if true %}\n  a\n  {% endif %}\nb\n", "a  {%- if true -%}  b  {%- endif %}  c", " {{ 1 }} \n {{ 2 }}\n\n",
          "a\n  {# c #}\nb {# d #}\nc", "x {%+ if true %}\n y{% endif +%}\nz", "\n\n{%- set a = 1 %}\n\n b", "a {{- 1 -}} b\n\n\n",
          "  {% set a = 1 %}  {% set b = 2 %}\n  c", "a\r\nb\r\n{% if true %}\r\nc{% endif %}\r\n", "{% if true %}\n\n  x{% endif %}", "",
          "\n", "{# a -#}  \n b", "\u2003{%- if true %}\u3000\n{% endif %}", "a{% for i in [1,2] %}\n{{ i }}\n{% endfor %}\nb",
          "  {%- for i in [1] %}\n    {{- i }}\n  {%- endfor %}",
          "a\n\n  {%- if true %}\n\n  b\n  {% endif %}  \n c", "{{ 1 }}\n{{ 2 }}", "   {{ 1 }}", "\t{% if 1 %}\tx{% endif %}\t"]


def cases():
    for name, template in DIALECTS.items():
        for number, messages in enumerate(CONVERSATIONS):
            for follows in (True, False):
                yield f"{name} {number}", template, {"messages": messages, "add_generation_prompt": follows, "tools": None,
                                                     "bos_token": "<s>", "eos_token": "</s>"}
    variables = {"n": 3, "s": "h\u00e9llo", "l": [1, 2, 3], "d": {"k": "v", "b": True, "e": None}, "messages": CONVERSATIONS[3]}
    for line in PARTS.strip().split("\n"):
        yield line, line, variables
    for template in SPACES:
        yield repr(template), template, variables


def expected(template, variables):
    try:
        return environment().from_string(template).render(**variables)
    except Exception as error:
        return error


# What jinja2 renders and longreach refuses, since no published template needs it or its form depends on Python.
REFUSED_HERE = ["{{ 1 == 1.0 }}", "{{ (1, 2) }}", "{{ [1, 'a'] }}", "{{ 'x' * 3 }}", "{{ 5 / 2 }}"]

asked = list(cases())
answers = subprocess.run([sys.argv[1]], input="".join(json.dumps({"template": t, "variables": v}) + "\n" for _, t, v in asked),
                         capture_output=True, text=True, check=True).stdout.splitlines()
assert len(answers) == len(asked), f"{len(answers)} answers of {len(asked)}"
wrong = refused = 0
for (name, template, variables), line in zip(asked, answers):
    ours, theirs = json.loads(line), expected(template, variables)
    refused += "error" in ours
    if "error" in ours:
        good = isinstance(theirs, Exception) or template in REFUSED_HERE
        good &= not isinstance(theirs, Raised) or (str(theirs) == ours["error"] and ours["line"] == 0)
    else:
        good = ours["text"] == theirs
    if not good:
        wrong += 1
        print(f"{name}\n  jinja2    {theirs!r}\n  longreach {ours.get('text', ours)!r}")
print(f"{len(asked)} renderings compared with jinja2 {jinja2.__version__}, {refused} refused by longreach, {wrong} differ")
sys.exit(1 if wrong else 0)
