#!/usr/bin/env python3
"""Retrieval from long contexts: facts hidden in a text, asked for at its end, for every policy of the key/value cache.

Use: retrieval.py MODEL TEXT [--narrows build/release/narrows] [--tokens 8192] [--budget 0.25] [--policies a,b] [--threads N]
                  [--json FILE]

40 cases: TEXT (tools/wikitext.py writes WikiText's test split) is cut into four parts, in each of which ten of the facts below
stand at ten depths, 5 to 95 % of --tokens. The ten questions follow, in words that share no key word with the fact, each
with its answer. The model reads all of it under the policy, as it would in decode, and every answer is scored given what
stands before it (answers are given to the model, so one mistake does not cause the next).

For each policy: how many answers greedy decoding would have given to the letter, and the mean log-likelihood of an answer in nats. `absent`
is the dense cache on the same texts without the facts: what can be guessed. Needs Python's standard library only.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

FACTS = [  # the fact, the question, the answer
    ("The lighthouse keeper painted his door crimson.", "Which colour is the entrance of the man who tends the beacon?", "Crimson"),
    ("Old Halvard stores his savings in a jar of buckwheat.", "In which grain does an aged man hide money?", "Buckwheat"),
    ("The mayor's parrot learned to whistle in Lisbon.", "In which city did the politician's bird pick up a tune?", "Lisbon"),
    ("Dr. Imre keeps a harpsichord in her cellar.", "Which instrument stands in the physician's basement?", "Harpsichord"),
    ("The bakery on Elm Street burned down on a Thursday.", "On which weekday was the bread shop lost to fire?", "Thursday"),
    ("Captain Roe named his ship after his aunt Matilda.", "Which woman gave her name to the vessel?", "Matilda"),
    ("The twins were raised by a blacksmith.", "What was the trade of the man who brought up both children?", "Blacksmith"),
    ("Norah hid the key under a flowerpot.", "Beneath which object does the thing that opens the lock lie?", "Flowerpot"),
    ("The orchestra rehearses in an abandoned brewery.", "In which kind of building do the musicians practise?", "Brewery"),
    ("The judge collects antique thermometers.", "Which devices does the magistrate gather?", "Thermometers"),
    ("The expedition ran out of sugar near Tromso.", "Near which town was there nothing sweet left for the explorers?", "Tromso"),
    ("The gardener is allergic to lavender.", "Which plant makes the man who tends the beds sneeze?", "Lavender"),
    ("Lieutenant Paz broke his left elbow.", "Which joint did the officer injure?", "Elbow"),
    ("The monastery sells honey to a circus.", "Who buys what the monks' bees make?", "Circus"),
    ("The novelist wrote her last chapter in Nairobi.", "Where did the author finish her book?", "Nairobi"),
    ("The chess champion only drinks buttermilk.", "Which beverage does the master of the board take?", "Buttermilk"),
    ("The tunnel was dug by miners from Silesia.", "From which region came the men who made the underground passage?", "Silesia"),
    ("The bishop owns eleven bicycles.", "What does the churchman have so many of to ride?", "Bicycles"),
    ("Aunt Greta's recipe calls for nutmeg.", "Which spice does the relative's dish need?", "Nutmeg"),
    ("The telegram arrived during an earthquake.", "What was happening while the message was delivered?", "Earthquake"),
    ("The carpenter built the cradle from walnut.", "Of which wood is the baby's bed?", "Walnut"),
    ("The spy's password was marmalade.", "Which secret word did the agent use?", "Marmalade"),
    ("The violin teacher moved to Antwerp.", "In which city does the woman who gives string lessons live now?", "Antwerp"),
    ("The observatory's roof is covered with copper.", "Which metal lies on top of the place where stars are watched?", "Copper"),
    ("The sheriff's horse is afraid of umbrellas.", "Which things frighten the lawman's mount?", "Umbrellas"),
    ("The widow donated her fortune to a hospital.", "Which institution received the bereaved woman's wealth?", "Hospital"),
    ("The smugglers hid emeralds in candles.", "Which gems did the criminals conceal?", "Emeralds"),
    ("The ferry to the island leaves from Ostend.", "From which port does the boat depart?", "Ostend"),
    ("The poet's favourite insect was the dragonfly.", "Which small creature did the writer of verse like best?", "Dragonfly"),
    ("The school bell was cast in Prague.", "Where was the thing made that rings for pupils?", "Prague"),
    ("The magician escaped through a chimney.", "By which way did the illusionist get out?", "Chimney"),
    ("The queen's portrait hangs in the kitchen.", "In which room is the monarch's picture?", "Kitchen"),
    ("The locksmith plays the accordion at weddings.", "What does the maker of keys play when people marry?", "Accordion"),
    ("The village was saved from the flood by beavers.", "Which animals rescued the hamlet from the water?", "Beavers"),
    ("The inventor lost his patent in a game of dominoes.", "In which game was the engineer's licence gambled away?", "Dominoes"),
    ("The ambassador's daughter studies geology.", "Which science has the diplomat's child chosen?", "Geology"),
    ("The pirate was buried with a telescope.", "Which object lies in the buccaneer's grave?", "Telescope"),
    ("The tailor sewed the general's coat from velvet.", "Of which cloth is the commander's garment?", "Velvet"),
    ("The comet was first seen by a shepherd.", "What was the occupation of the discoverer of the tailed star?", "Shepherd"),
    ("The clock in the tower stopped in February.", "In which month did the timepiece up high cease to move?", "February"),
]
PARTS, DEPTHS = 4, 10
POLICIES = ["representatives", "snapkv", "snapkv-merge", "h2o", "streaming"]


def run(command, text=None):
    result = subprocess.run(command, input=text, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if result.returncode:
        sys.exit(f"retrieval: {result.stderr.strip()}")
    return result.stdout


def exam(facts):
    """The questions with their answers, and where in it the answers lie."""
    text, places = "\n\nQuestions about the text above, and their answers.\n", []
    for _, question, answer in facts:
        text += f"\nQuestion: {question}\nAnswer:"
        places.append((len(text), len(text) + 1 + len(answer)))
        text += f" {answer}\n"
    return text, places


def compose(haystack, facts, hidden):
    """The haystack's paragraphs, facts at their depths, then the exam; answers' places in bytes."""
    paragraphs, at = haystack.split("\n"), 0
    wanted = [(0.05 + 0.9 * i / (DEPTHS - 1)) * len(haystack) for i in range(DEPTHS)]
    out, length = [], 0
    for paragraph in paragraphs:
        while hidden and at < DEPTHS and length >= wanted[at]:
            out.append(facts[at][0])
            at += 1
        out.append(paragraph)
        length += len(paragraph) + 1
    while hidden and at < DEPTHS:
        out.append(facts[at][0])
        at += 1
    text, (questions, places) = "\n".join(out), exam(facts)
    shift = len(text.encode())
    return text + questions, [(a + shift, b + shift) for a, b in places]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("--narrows", default=os.path.join(os.path.dirname(__file__), "../build/release/narrows"))
    parser.add_argument("--tokens", type=int, default=8192, help="of each of the four windows (8192)")
    parser.add_argument("--budget", type=float, default=0.25, help="of the dense cache's bytes (0.25)")
    parser.add_argument("--policies", default=",".join(["dense", "absent"] + POLICIES), help="a list; all: %(default)s")
    parser.add_argument("--threads", default="0", help="of narrows; 0: all cores")
    parser.add_argument("--json")
    a = parser.parse_args()
    unknown = set(a.policies.split(",")) - {"dense", "absent", *POLICIES}
    if unknown:
        parser.error(f"--policies: expected some of dense, absent, {', '.join(POLICIES)}; found {', '.join(sorted(unknown))}")
    if not 0 < a.budget <= 1:
        parser.error(f"--budget: expected more than 0 and at most 1, found {a.budget}")
    try:
        with open(a.text, encoding="utf-8") as f:
            source = f.read()
    except (OSError, UnicodeDecodeError) as error:
        parser.error(f"{a.text}: {error}")
    if len(source) < 4 * PARTS * a.tokens:
        parser.error(f"{a.text}: expected some {5 * PARTS * a.tokens} characters for {PARTS} windows, found {len(source)}")
    if not os.access(a.narrows, os.X_OK):
        parser.error(f"--narrows: {a.narrows} is no program")

    def score(text, places, flags):
        with tempfile.TemporaryDirectory() as folder:
            path, scores = os.path.join(folder, "text"), os.path.join(folder, "scores")
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)
            run([a.narrows, "eval", "-m", a.model, "-f", path, "-c", str(a.tokens), "--max-tokens", str(a.tokens), "-t", a.threads,
                 "--tokens", scores, *flags])
            with open(scores) as f:
                tokens = [json.loads(line) for line in f]
        # The first token of a window without BOS is not scored: count from the end.
        end, spans = len(text.encode()), []
        for token in reversed(tokens):
            spans.append((end - token["bytes"], end, token))
            end -= token["bytes"]
        results = []
        for begin, until in places:
            own = [t for b, e, t in spans if b < until and e > begin]
            if not own or not any(b == begin for b, _, _ in spans):
                sys.exit("retrieval: an answer does not begin with a token: another tokenizer than this script knows")
            results.append((all(t["likeliest"] for t in own), sum(t["log_likelihood"] for t in own)))
        return results

    # As many characters of the source as leave room for the exam.
    texts, begin = [], 0
    for part in range(PARTS):
        facts = FACTS[part * DEPTHS:(part + 1) * DEPTHS]
        size = a.tokens * 4
        while True:
            text, places = compose(source[begin:begin + size], facts, True)
            count = len(run([a.narrows, "tokenize", "-m", a.model, "-f", "-", "--ids"], text).split(","))
            if count <= a.tokens - 2:
                break
            size = int(size * (a.tokens - 2) / count * 0.998)
        texts.append((begin, size, facts))
        begin += size

    print(f"{'policy':<18} {'answers':>10} {'log-likelihood':>15}   by depth, of {PARTS}")
    report = {}
    for policy in a.policies.split(","):
        flags = [] if policy in ("dense", "absent") else ["--kv-policy", policy, "--kv-budget", str(a.budget)]
        results = []
        for begin, size, facts in texts:
            text, places = compose(source[begin:begin + size], facts, policy != "absent")
            results.append(score(text, places, flags))
        flat = [r for part in results for r in part]
        found, mean = sum(r[0] for r in flat), sum(r[1] for r in flat) / len(flat)
        by_depth = [sum(part[d][0] for part in results) for d in range(DEPTHS)]
        report[policy] = {"found": found, "cases": len(flat), "log_likelihood": mean, "by_depth": by_depth}
        print(f"{policy:<18} {found:>4} of {len(flat):>2} {mean:>15.3f}   {' '.join(map(str, by_depth))}", flush=True)
    if a.json:
        with open(a.json, "w") as f:
            json.dump({"model": os.path.basename(a.model), "tokens": a.tokens, "budget": a.budget, "policies": report}, f, indent=1)


if __name__ == "__main__":
    main()
