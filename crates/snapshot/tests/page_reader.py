"""Reads a pickle with the opcodes that PyTorch's page (`torch/utils/viz/MemoryViz.js`) knows, and no
others, and takes no more elements at once than its function calls can.

    python3 page_reader.py FILE    prints what `pickle.load` gives if both agree
"""

import struct
import sys


def read(data):
    stack, marks, memo = [], [], []
    at = 0

    def take(count):
        nonlocal at
        assert at + count <= len(data), "the file ends too early"
        at += count
        return data[at - count : at]

    def unmark():
        mark = marks.pop()
        values = stack[mark:]
        del stack[mark:]
        assert len(values) <= 2000, f"{len(values)} values at once, before byte {at}"
        return values

    while True:
        opcode = take(1)
        if opcode == b"\x80":
            assert take(1)[0] in (2, 3, 4), "a protocol that the page refuses"
        elif opcode == b"\x95":
            take(8)
        elif opcode == b"(":
            marks.append(len(stack))
        elif opcode == b"}":
            stack.append({})
        elif opcode == b"]":
            stack.append([])
        elif opcode == b"u":
            values = unmark()
            stack[-1].update(zip(values[::2], values[1::2]))
        elif opcode == b"e":
            values = unmark()
            assert len(values) <= 1000, f"a batch of {len(values)}"
            stack[-1].extend(values)
        elif opcode == b"\x86":
            second, first = stack.pop(), stack.pop()
            stack.append((first, second))
        elif opcode == b"\x94":
            memo.append(stack[-1])
        elif opcode == b"h":
            stack.append(memo[take(1)[0]])
        elif opcode == b"j":
            stack.append(memo[struct.unpack("<I", take(4))[0]])
        elif opcode == b"\x8c":
            stack.append(take(take(1)[0]).decode())
        elif opcode == b"X":
            stack.append(take(struct.unpack("<I", take(4))[0]).decode())
        elif opcode == b"K":
            stack.append(take(1)[0])
        elif opcode == b"M":
            stack.append(struct.unpack("<H", take(2))[0])
        elif opcode == b"J":
            stack.append(struct.unpack("<i", take(4))[0])
        elif opcode == b"\x8a":
            stack.append(int.from_bytes(take(take(1)[0]), "little", signed=True))
        elif opcode == b"G":
            stack.append(struct.unpack(">d", take(8))[0])
        elif opcode in (b"\x88", b"\x89"):
            stack.append(opcode == b"\x88")
        elif opcode == b"N":
            stack.append(None)
        elif opcode == b".":
            assert at == len(data), "bytes after the end"
            return stack.pop()
        else:
            raise AssertionError(f"the page does not know opcode {opcode!r} before byte {at}")


if __name__ == "__main__":
    import json
    import pickle

    data = open(sys.argv[1], "rb").read()
    snapshot = read(data)
    assert snapshot == pickle.loads(data), "the page and Python read different things"
    json.dump(snapshot, sys.stdout)
