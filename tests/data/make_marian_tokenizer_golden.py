"""Writes `marian_tokenizer_golden.json`: what Hugging Face's MarianTokenizer does with odd texts.

Needs transformers, sentencepiece and sacremoses, but neither torch nor this package:

    python tests/data/make_marian_tokenizer_golden.py

Ids are those of the checkpoint, without the end that MarianTokenizer appends. Control symbols in a
text are ordinary text here, so MarianTokenizer is told to split them like any other.
"""

import json
import random
import shutil
import tempfile
from pathlib import Path

from sacremoses import MosesPunctNormalizer
from transformers import MarianTokenizer

FOLDER = Path(__file__).parent
CHECKPOINT = FOLDER / "marian-en-de-tiny"
LANGUAGES = ["en", "de", "es", "fr", "cs", "cz", "ja", None]

SENTENCES = [
    "Tom didn't want to go to Boston.",
    "Tom wollte nicht nach Boston fahren, weil es schon spät war.",
    "Le café naïf coûte 12 €, n’est-ce pas ?",
    "我们明天去北京。他读了一本书！",
    "Он читает книгу.",
    "これは本です。",
]
SEPARATORS = [
    *"\n\r\t\v\f\x00\x01\x07\x1b\x1c\x1d\x1e\x1f\x7f\x80\x85\x8f\x9f",
    *"\u2028\u2029\u00a0\u1680\u2003\u200b\u200c\u200d\u200e\u202f\u205f\u2060\u3000\u2581\u2585",
    *("\ufeff", "\ufffd", "\ufffe", "\r\n", "  ", " \u00a0 ", "\u00ad"),
]
ODD = [
    *("", " ", "   ", "\u00a0", "\u200b", "\ufeff", "\n", "\x00", "▁", "▁▁", "a", "."),
    *("</s>", "<s>", "<pad>", "<unk>", "a </s> b<pad> <unk>", "<unk>", "[START] [END] [PAD]"),
    *("<0x41>", "< / s >", " ⁇ ", "▁the", "[END] ▅ \\n", "\\N{BULLET} %s {0}"),
    *(
        "ﬁ Ⅷ ① ẞ İ ﷺ",
        "ｆｕｌｌ　ｗｉｄｔｈ",
        "e\u0301 \u0301 が か\u3099 각",
        "x\u0300\u0301\u0302\u0303",
    ),
    *(
        "Rabbit 🐇 and 👨\u200d👩\u200d👧 🇩🇪",
        "𠮷野家 龘 𪚥",
        "\U0010ffff\U000e0001",
        "שלום עולם مرحبا",
    ),
    *("café naïve Ünïcode ß ÄÖÜ", "12,345.67 % 1\u00a0000", "“Yes,” he said… – ‘no’ — «oui»"),
    "\ufeffTom is here.",
    "I like books.\r",
    "https://example.org/?a=b&c=d#e user@example.org",
    "".join(chr(c) for c in range(32, 127)),
    "ll" * 40 + "lll al les l ll lll",
    "x" * 300,
    "ä" * 50 + "😀" * 50,
    " ".join(["Tom", "hellllichten", "🐇", "Übung"] * 100),
]
WITH_LANGUAGE = [
    *(">>deu<< Tom is here.", ">>deu<<Tom is here.", ">>fra<<  Tom", ">>deu<<", ">>deu<< "),
    *(">>xxx<< Tom", ">>deu<< >>fra<< Tom", ">>deu<<>>fra<<", ">>deu_Latn<< Tom", ">><< Tom"),
    *(" >>deu<< Tom", "Tom >>deu<< is", ">>deu Tom", ">> deu << Tom", ">>DEU<< Tom", ">>deu< Tom"),
    *(
        ">>deu\n<< Tom",
        ">>deu<<\nTom\nis",
        "\ufeff>>deu<< Tom",
        ">>Tom said << is",
        ">>>deu<<< Tom",
    ),
    *("<<deu>> Tom", "> >deu<< Tom", ">>deu<< </s> Tom", ">></s><< Tom", ">>🐇<<🐇"),
]
PUNCTUATION = [
    "„Ja“, sagte er – oder ’s war ‚nein‘ —…",
    '"Yes", he said. "No". "Why"... "x",. "y"<',
    'Er sagte: "gut," und ging."  "Ja..." ."\u2003x ."\n< ."',
    "l’été d‘hiver a’b’c ‘x’ ´´ `y` ''z'' '''",
    "«\u00a0Oui\u00a0» «non» \u00a0«\u00a0\u00a0»\u00a0 «\u00a0«\u00a0x\u00a0»\u00a0»",
    "1\u00a0000\u00a0000 km 5\u00a0% 6 % nº\u00a05 20\u00a0ºC 3\u00a0cm",
    "٣ % ٣\u00a0٤ 1\u00a02\u00a03\u00a04",
    "(a) ( b ) .(c)! ( d );e : f ; g  (h)   (",
    "a\u00a0: b\u00a0? c\u00a0! d\u00a0; e,\u00a0f g\u00a0h\u00a0.",
    "a\r\nb\r c\t d\u2028e \u00a0",
    " \u00a0\u2003x\x1c\x85",
    "。，、？《》（）％～【】",
    "''''' ``````, \"\"\",,..\"",
    "",
    " ",
]


def tokenized(tokenizer, texts):
    result = []
    for text in texts:
        ids = tokenizer(text, split_special_tokens=True).input_ids[:-1]
        target_ids = tokenizer(text_target=text, split_special_tokens=True).input_ids[:-1]
        result.append(
            {
                "text": text,
                "source": ids,
                "target": target_ids,
                "source_decoded": tokenizer.decode(ids, skip_special_tokens=True),
                "target_decoded": tokenizer.decode(target_ids, skip_special_tokens=True),
            }
        )
    return result


def main():
    plain = MarianTokenizer.from_pretrained(CHECKPOINT)
    between = [f"Tom{mark}is here" for mark in SEPARATORS]
    around = [f"{mark}Tom is {mark} here{mark}" for mark in SEPARATORS]
    with tempfile.TemporaryDirectory() as directory:
        shutil.copytree(CHECKPOINT, directory, dirs_exist_ok=True)
        words = json.loads((CHECKPOINT / "vocab.json").read_text(encoding="utf-8"))
        words |= {">>deu<<": len(words), ">>fra<<": len(words) + 1}
        (Path(directory) / "vocab.json").write_text(json.dumps(words), encoding="utf-8")
        multilingual = tokenized(MarianTokenizer.from_pretrained(directory), WITH_LANGUAGE)
    generator = random.Random(1)
    rows = [[generator.randrange(2, 4798) for _ in range(12)] for _ in range(40)]
    golden = {
        "texts": tokenized(plain, [*SENTENCES, *between, *around, *ODD]),
        "languages": multilingual,
        "decoded": [[row, plain.decode(row, skip_special_tokens=True)] for row in rows],
        "punctuation": [
            [text, {str(code): normalized(code, text) for code in LANGUAGES}]
            for text in PUNCTUATION
        ],
    }
    content = json.dumps(golden, separators=(",", ":"))
    (FOLDER / "marian_tokenizer_golden.json").write_text(content + "\n", encoding="utf-8")


def normalized(language, text):
    return MosesPunctNormalizer(language).normalize(text)


if __name__ == "__main__":
    main()
