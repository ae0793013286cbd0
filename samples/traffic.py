"""The prompts of the sample: four workloads, written for it or made from the interpreter's own sources.

`requests()` is deterministic: the same Python gives the same prompts.
"""

from __future__ import annotations

import argparse
import ast
import calendar
import collections
import configparser
import csv
import difflib
import email.message
import fractions
import functools
import heapq
import html.parser
import http.client
import inspect
import json.decoder
import logging
import random
import shlex
import statistics
import string
import textwrap
import threading
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import types

SYSTEM = "You are a helpful assistant. Answer in a few clear sentences and give one example."

CHAT = (
    "My basil plant drops its lower leaves in winter. What should I change?",
    "Explain compound interest to a twelve-year-old, with numbers.",
    "I have two days in Lisbon with a toddler. Suggest a calm plan.",
    "What is the difference between a cold and the flu, and when should I see a doctor?",
    "Write a short thank-you note to a neighbour who watered my plants.",
    "How do I remove red wine from a light cotton shirt?",
    "Give me three ideas for a vegetarian dinner with lentils and carrots.",
    "Why is the sky red at sunset but blue at noon?",
    "My flight was cancelled and the airline offers a voucher. What are my options?",
    "How can I learn to touch-type in a month? Make a weekly plan.",
    "Summarize the story of the tortoise and the hare and say what it teaches.",
    "What should I ask when I visit a flat that I may rent?",
    "How does a refrigerator keep food cold?",
    "Suggest a polite way to decline a meeting that has no agenda.",
    "I feel tired every afternoon. What habits could I try to change?",
    "What are the main differences between a mortgage and a personal loan?",
    "Tell me a joke about a cat who works in an office, then explain it.",
    "How do I train for a first ten-kilometre run in eight weeks?",
    "Which knots should a beginner sailor know, and what is each one for?",
    "Explain how vaccines work without using medical words.",
    "What is a good way to store fresh herbs so that they last a week?",
    "Draft an email that asks a landlord to repair a leaking kitchen tap.",
    "How do bees find their way back to the hive?",
    "I want to read more books this year. How do I make it a habit?",
    "What do I need to know before I adopt an older dog?",
    "Describe the water cycle as if it were a journey.",
    "How do I split a restaurant bill fairly among six friends?",
    "Why do we have leap years? Give the rule.",
)

OTHER_LANGUAGE = (
    "Explique pourquoi la mer est salée, puis donne un exemple de lac salé.",
    "Écris une courte lettre à ma grand-mère pour lui raconter mes vacances en Bretagne.",
    "Quels sont les avantages et les inconvénients du télétravail pour une petite entreprise ?",
    "Donne-moi une recette simple de soupe aux poireaux pour quatre personnes.",
    "Erkläre mir bitte den Unterschied zwischen Wetter und Klima mit einem Beispiel.",
    "Wie schreibe ich eine höfliche Beschwerde über eine verspätete Lieferung?",
    "Welche Sehenswürdigkeiten in Hamburg kann man an einem Regentag besuchen?",
    "Fasse das Märchen von Hänsel und Gretel in fünf Sätzen zusammen.",
    "¿Por qué cambian de color las hojas de los árboles en otoño?",
    "Escribe un plan de estudio de cuatro semanas para aprender italiano básico.",
    "¿Cómo puedo ahorrar agua en casa? Dame cinco consejos prácticos.",
    "Cuéntame una leyenda corta sobre la luna y el conejo.",
    "Spiega come funziona un motore elettrico a un bambino di dieci anni.",
    "Quali sono i piatti tipici della Sicilia e come si preparano?",
    "Explique a diferença entre inflação e juros com um exemplo simples.",
    "Quais cuidados devo ter ao viajar de carro com crianças pequenas?",
    "Объясни простыми словами, почему самолёты летают.",
    "Напиши короткий рассказ о собаке, которая нашла дорогу домой.",
    "请用简单的话解释为什么天空是蓝色的。",
    "请写一封感谢信，感谢老师一年来的帮助。",
    "日本の四季について、それぞれの特徴を短く説明してください。",
    "友だちに引っ越しの手伝いをお願いするメールを書いてください。",
    "हमें पानी क्यों बचाना चाहिए? पाँच कारण बताइए।",
    "اشرح لماذا ننام، وكم ساعة يحتاج الإنسان كل ليلة.",
    "Neden mevsimler oluşur? Kısa ve basit bir dille anlat.",
    "Leg uit hoe een zeilboot tegen de wind in kan varen.",
)

CODE_TASKS = (
    "Explain what this code does and name one edge case:",
    "Write a unit test for the following code:",
    "Review this code and suggest one improvement:",
)

CODE_OBJECTS: tuple[types.ModuleType | type | object, ...] = (
    calendar.TextCalendar.formatmonth,
    textwrap.TextWrapper._split_chunks,
    heapq.merge,
    statistics.quantiles,
    shlex.shlex.read_token,
    string.Template.substitute,
    functools.lru_cache,
    collections.Counter.most_common,
    fractions.Fraction.limit_denominator,
    csv.Sniffer._guess_delimiter,
    difflib.SequenceMatcher.find_longest_match,
    configparser.RawConfigParser._read,
    argparse.ArgumentParser._get_values,
    ast.literal_eval,
    email.message.Message.get_payload,
    html.parser.HTMLParser.parse_starttag,
    http.client.HTTPResponse._read_status,
    json.decoder.py_scanstring,
    logging.Logger.makeRecord,
    random.Random.sample,
    threading.Condition.wait,
    zipfile.ZipFile._RealGetContents,
    collections.ChainMap.new_child,
    functools.singledispatch,
    heapq.nlargest,
    textwrap.dedent,
)

RETRIEVAL_MODULES = (argparse, difflib, statistics, configparser)
RETRIEVAL_CHARACTERS = 25_000


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """One chat request of the sample."""

    workload: str
    client_id: str
    messages: tuple[dict[str, str], ...]
    max_tokens: int


def requests() -> list[SampleRequest]:
    """Return the sample's requests, the workloads interleaved as traffic would be."""
    made = [
        *_numbered("chat", [[_system(), _user(text)] for text in CHAT], max_tokens=128),
        *_numbered("language", [[_user(text)] for text in OTHER_LANGUAGE], max_tokens=128),
        *_numbered("code", [[_user(text)] for text in _code_prompts()], max_tokens=64),
        *_numbered("retrieval", [[_user(text)] for text in _retrieval_prompts()], max_tokens=48),
    ]
    random.Random(2026).shuffle(made)
    return made


def _numbered(workload: str, chats: list[list[dict[str, str]]], max_tokens: int) -> list[SampleRequest]:
    return [
        SampleRequest(workload, f"{workload}-{number:02d}", tuple(messages), max_tokens)
        for number, messages in enumerate(chats)
    ]


def _system() -> dict[str, str]:
    return {"role": "system", "content": SYSTEM}


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _code_prompts() -> list[str]:
    return [
        f"{CODE_TASKS[number % len(CODE_TASKS)]}\n\n```python\n{_source(code)[:1800]}\n```"
        for number, code in enumerate(CODE_OBJECTS)
    ]


def _source(code: object) -> str:
    return textwrap.dedent(inspect.getsource(code))  # type: ignore[arg-type]


def _retrieval_prompts() -> list[str]:
    """A long document with one sentence that does not belong there, and a question about it.

    3.4 to 4.3 characters of these modules make a token of this model: 5,800 to 7,300 positions.
    """
    prompts = []
    for number, module in enumerate(RETRIEVAL_MODULES):
        lines = inspect.getsource(module).splitlines()
        characters, taken = 0, []
        for line in lines:
            characters += len(line) + 1
            taken.append(line)
            if characters > RETRIEVAL_CHARACTERS:
                break
        needle = f"# NOTE: the access code of the archive is {4831 + 977 * number}."
        taken.insert(len(taken) * (number + 1) // 5, needle)
        document = "\n".join(taken)
        prompts.append(f"{document}\n\nWhat is the access code of the archive mentioned in the text above?")
    return prompts
