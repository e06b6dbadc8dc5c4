#!/usr/bin/env python3
"""Turn WikiText's word-level form back into ordinary text.

Use: wikitext.py [IN] [-o OUT]      (default: ../shared/data/wiki.test.txt to stdout; needs no package)

Undone, line by line:
  ` @-@ ` ` @,@ ` ` @.@ `       the separators inside words and numbers
  `= = Title = =`               becomes `== Title ==`
  spaces before , . ; : ! ? % and after $ £ € #; around / and °; around an en dash between two numbers
  spaces inside ( ) [ ] { }, inside pairs of " and of ', before 's 't 're 've 'll 'd 'm and other elisions, and
  before a plural's apostrophe
  the space that begins and ends every line
Kept: `<unk>`, as the five characters that they are (a model sees them as text), blank lines and the order of lines.
A lone ' is read by its context: after a word in -s or <unk> it is a possessive, else quotes open and close in turn.
The text is the same for whoever reads it: perplexities on it compare only with others on this form.
"""
import argparse
import pathlib
import re
import sys

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
SHORT_WORDS_IN_S = {"as", "is", "was", "has", "does", "his", "its", "this", "us", "yes", "thus", "versus"}


def join_double_quotes(line):
    pieces = line.split('"')
    for i in range(1, len(pieces)):
        if i % 2:  # this mark opens: the text after it loses its leading space
            pieces[i] = pieces[i].removeprefix(" ")
        else:
            pieces[i - 1] = pieces[i - 1].removesuffix(" ")
    return '"'.join(pieces)


def join_single_quotes(line):
    words, out, opened, glue = line.split(" "), [], False, False
    for word in words:
        if word != "'":
            out.append(("" if glue or not out else " ") + word)
            glue = False
            continue
        previous = out[-1].strip(" \"'(") if out else ""
        possessive = previous == "<unk>" or (previous.endswith("s") and previous.lower() not in SHORT_WORDS_IN_S)
        if opened or possessive:
            out.append("'")
            opened = False
        else:
            out.append(" '" if out else "'")
            opened = glue = True
    return "".join(out)


def normalise_line(line):
    line = re.sub(r" @([-,.])@ ", r"\1", line.strip(" "))
    if line.startswith("= ") and line.endswith(" ="):
        line = re.sub(r"(?<==) (?==)", "", line)
    line = re.sub(r"(?<=[^ ]) '(?=[A-Za-z])", "'", line)  # a quotation mark stands alone, so this is an elision
    line = join_single_quotes(line)
    line = re.sub(r"(?<=[(\[{]) | (?=[)\]}])", "", line)
    line = re.sub(r" (?=[,.;:!?%](?: |$|[)\]}\"']))", "", line)
    line = re.sub(r"(?<=[$£€#]) (?=\d)", "", line)
    line = re.sub(r" ([/°]) ", r"\1", line)
    line = re.sub(r"(?<=\d) – (?=\d)", "–", line)
    return join_double_quotes(line)


def normalise(text):
    return "\n".join(normalise_line(line) for line in text.split("\n"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input", nargs="?", type=pathlib.Path,
                        default=REPOSITORY.parent / "shared" / "data" / "wiki.test.txt",
                        help="word-level file (default: ../shared/data/wiki.test.txt beside the repository)")
    parser.add_argument("-o", "--output", type=pathlib.Path, help="where to write (default: stdout)")
    arguments = parser.parse_args()
    try:
        text = normalise(arguments.input.read_text(encoding="utf-8"))
        if arguments.output:
            arguments.output.write_text(text, encoding="utf-8", newline="\n")
        else:
            sys.stdout.buffer.write(text.encode())
    except BrokenPipeError:
        sys.stderr.close()
    except (OSError, UnicodeDecodeError) as error:
        sys.exit(f"wikitext: {arguments.input}: {error}")


if __name__ == "__main__":
    main()
