#!/usr/bin/env python3
"""Renders chat templates with jinja2 and writes what tests/tokenizer/chat_template_test.cc compares with.

  make_chat_goldens.py                        tests/data/chat/{goldens,snippets}.json from the templates beside them
  make_chat_goldens.py --templates DIR -o F   goldens of other templates, which NARROWS_CHAT_GOLDENS=F makes the
                                              test compare with as well

Needs jinja2 >= 3.1.6. The environment is that of transformers' apply_chat_template, whose namespace also refuses
attributes that begin with an underscore. strftime_now gives its format between \\x01, which the test fills in.
"""
import argparse
import json
import pathlib

import jinja2
import jinja2.ext
import jinja2.sandbox
from jinja2 import nodes

import chat_snippets

DATA = pathlib.Path(__file__).resolve().parent.parent / "tests/data/chat"

CONVERSATIONS = [
    [("user", "What is the capital of France?")],
    [("system", "You answer briefly."), ("user", "Hello!")],
    [("user", "Hi"), ("assistant", "Hello. What can I do?"), ("user", "Tell me\na joke.")],
    [("system", "Be kind."), ("user", "One"), ("assistant", "Two"), ("user", "Three"), ("assistant", "Four"), ("user", "Five")],
    [("user", "Hi"), ("assistant", "<think>\nA greeting.\n</think>\n\nHello!"), ("user", "More")],
    [("user", "first"), ("user", "second")],
    [("user", "q"), ("assistant", "a"), ("assistant", "b")],
    [("assistant", "I begin."), ("user", "Why?")],
    [("system", "Only a system message.")],
    [("user", "")],
    [("system", ""), ("user", "x"), ("assistant", ""), ("user", "y")],
    [("system", "Sie sind höflich."), ("user", "Größe 中文 🙂 \"quoted\" 'single' \\ <b>&amp;</b> {{ x }}")],
    [("user", "  leading and trailing \n"), ("assistant", "\tanswer\n\n"), ("user", "\nnext\t ")],
    [("user", "ask"), ("assistant", "done")],
    [("user", "ask"), ("tool", "{\"result\": 3}"), ("user", "so?")],
    [("system", "one"), ("user", "two"), ("system", "three"), ("user", "four")],
    [],
]


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller):
        return caller()


class Namespace(jinja2.utils.Namespace):
    def __init__(*args, **kwargs):
        attributes = dict(*args[1:], **kwargs)
        for name in attributes:
            Namespace._check(name)
        jinja2.utils.Namespace.__init__(args[0], attributes)

    def __setitem__(self, name, value):
        Namespace._check(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def _check(name):
        if name.startswith("_"):
            raise jinja2.exceptions.SecurityError(name)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def make_environment():
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals.update(raise_exception=raise_exception, namespace=Namespace,
                               strftime_now=lambda format: f"\x01{format}\x01")
    return environment


def render(environment, source, variables):
    """What comes out, or {"error": type} if jinja2 refuses."""
    try:
        output = environment.from_string(source).render(**variables)
        output.encode("utf-8")
        return {"output": output}
    except Exception as error:  # a template may fail in any of Python's ways
        return {"error": type(error).__name__}


def make_goldens(environment, folder):
    templates = {}
    for path in sorted(folder.glob("*.jinja")):
        source = path.read_text(encoding="utf-8", errors="strict")
        cases = []
        for index, conversation in enumerate(CONVERSATIONS):
            messages = [{"role": role, "content": content} for role, content in conversation]
            for prompt in (False, True):
                variables = dict(messages=messages, tools=None, documents=None, add_generation_prompt=prompt,
                                 bos_token="<s>", eos_token="</s>")
                cases.append({"conversation": index, "prompt": prompt, **render(environment, source, variables)})
        templates[path.stem] = {"source": source, "cases": cases}
    return {"conversations": [[{"role": r, "content": c} for r, c in conversation] for conversation in CONVERSATIONS],
            "templates": templates}


def write(path, data):
    path.write_text(json.dumps(data, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
    print(path, path.stat().st_size, "bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--templates", type=pathlib.Path)
    parser.add_argument("-o", "--output", type=pathlib.Path)
    options = parser.parse_args()
    environment = make_environment()
    if options.templates:
        return write(options.output, make_goldens(environment, options.templates))
    goldens = make_goldens(environment, DATA / "templates")
    for template in goldens["templates"].values():
        del template["source"]  # the test reads the template's file
    write(DATA / "goldens.json", goldens)
    snippets = [{"source": source, **render(environment, source, chat_snippets.VARIABLES)}
                for source in chat_snippets.all_snippets()]
    snippets = [s for s in snippets if " at 0x" not in s.get("output", "")]  # addresses are no one's to match
    write(DATA / "snippets.json", {"variables": chat_snippets.VARIABLES, "snippets": snippets})


if __name__ == "__main__":
    main()
