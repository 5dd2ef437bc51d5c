"""What the code of a `forward` may do: read attributes, call, keep locals, loop and branch; nothing that stays behind.

A network is recognised by running its `forward` once on a stand-in. What a user's code did there beside computing (a
counter, a print, a list that grows) would happen once and then never again, so code that could do such a thing is not
run at all. This is read from bytecode, which is there also where a source file is not, by permission: an instruction
or a name that is not known refuses.
"""

import builtins
import dis
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

# Names of instructions from Python 3.10 on; one that a later version brings refuses, until it is known here.
LOCALS = {
    "LOAD_CONST",
    "LOAD_SMALL_INT",
    "LOAD_FAST",
    "LOAD_FAST_BORROW",
    "LOAD_FAST_BORROW_LOAD_FAST_BORROW",
    "LOAD_FAST_CHECK",
    "LOAD_FAST_LOAD_FAST",
    "STORE_FAST",
    "STORE_FAST_LOAD_FAST",
    "STORE_FAST_STORE_FAST",
    "BUILD_TUPLE",
    "UNPACK_SEQUENCE",
}
GLOBALS = {"LOAD_GLOBAL", "LOAD_DEREF"}
ATTRIBUTES = {"LOAD_ATTR", "LOAD_METHOD"}
CALLS = {
    "CALL",
    "CALL_FUNCTION",
    "CALL_FUNCTION_KW",
    "CALL_KW",
    "CALL_METHOD",
    "KW_NAMES",
    "PRECALL",
    "PUSH_NULL",
    "RETURN_CONST",
    "RETURN_VALUE",
}
NOTHING = {"CACHE", "COPY_FREE_VARS", "EXTENDED_ARG", "NOP", "NOT_TAKEN", "RESUME"}
LOOPS = {"END_FOR", "FOR_ITER", "GET_ITER", "JUMP_ABSOLUTE", "JUMP_BACKWARD", "JUMP_FORWARD", "POP_ITER", "POP_TOP"}
# Of numbers; a stand-in has no arithmetic.
ARITHMETIC = {
    "BINARY_ADD",
    "BINARY_OP",
    "BINARY_SLICE",
    "BINARY_SUBSCR",
    "BINARY_SUBTRACT",
    "BUILD_SLICE",
    "COMPARE_OP",
    "TO_BOOL",
    "UNARY_NEGATIVE",
}
CONSTANTS = {"LOAD_CONST", "LOAD_SMALL_INT"}
CHOICES = {"BINARY_SUBSCR": 1, "BINARY_SLICE": 2}  # by how many numbers
HARMLESS = LOCALS | GLOBALS | ATTRIBUTES | CALLS | NOTHING | LOOPS | ARITHMETIC

# What code may name: these things, and numbers and strings.
KNOWN = (torch, nn, F, F.relu, F.linear, torch.relu, torch.flatten, len, enumerate)
KNOWN_IDS = {id(thing) for thing in KNOWN}
# What code may ask of those modules and of a stand-in, beside parts and numbers of the network.
KNOWN_ATTRIBUTES = {"flatten", "functional", "nn", "relu", "relu_", "reshape", "shape", "size", "view"}
DATA = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class Reading:
    """What code names, and what it does with it.

    Attributes:
        globals: Names of the module around it, or of a function around it.
        attributes: Names behind a dot.
        computes: Whether it calculates with numbers, branches, or chooses by any but a constant.
    """

    globals: frozenset[str]
    attributes: frozenset[str]
    computes: bool

    @property
    def asks_for_length(self) -> bool:
        return "len" in self.globals


@lru_cache(maxsize=256)
def read(code: CodeType) -> Reading | None:
    """What code names; None if it could do more than compute."""
    named_globals = set()
    attributes = set()
    for instruction in dis.get_instructions(code):
        name = instruction.opname
        if name not in HARMLESS and not name.startswith("POP_JUMP_"):
            return None
        if name == "BINARY_OP" and instruction.argrepr.endswith("="):  # `+=` would change a list where it stands
            return None
        if name in GLOBALS:
            named_globals.add(instruction.argval)
        if name in ATTRIBUTES:
            attributes.add(instruction.argval)
    return Reading(frozenset(named_globals), frozenset(attributes), _computes(code))


def _computes(code: CodeType) -> bool:
    """Whether code calculates with numbers, branches, or chooses by any but a constant, as `layers[:-1]` does."""
    constants = 0  # so many stand right before
    for instruction in dis.get_instructions(code):
        name = instruction.opname
        if name in CONSTANTS:
            constants += 1
            continue
        if name.startswith("POP_JUMP_") or (name in ARITHMETIC and constants < _needed(instruction)):
            return True
        if name not in NOTHING:
            constants = int(name == "BUILD_SLICE")  # of constants it is one
    return False


def _needed(instruction: dis.Instruction) -> float:
    """Of how many constants the result is a mere choice; of none, if it is not."""
    if instruction.opname == "BUILD_SLICE":
        return instruction.argval
    if instruction.opname == "BINARY_OP":
        return 1 if instruction.argrepr == "[]" else math.inf
    return CHOICES.get(instruction.opname, math.inf)


def is_data(value: Any) -> bool:
    """Whether a value is a number, a string or a tuple of them, which nobody can change in place."""
    if type(value) is tuple:
        return all(is_data(each) for each in value)
    return type(value) in DATA


def is_known(value: Any) -> bool:
    """Whether a value is data, or one of the things that code may name."""
    return is_data(value) or id(value) in KNOWN_IDS


def names_only_what_is_known(function: Callable, reading: Reading) -> bool:
    """Whether the globals that a function reads, and its defaults, are what they seem."""
    code = function.__code__
    around = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    for name in reading.globals:
        if name in around:
            value = around[name].cell_contents
        else:
            value = function.__globals__.get(name, getattr(builtins, name, KNOWN))
        if not is_known(value):
            return False
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    return all(is_data(value) for value in defaults)
