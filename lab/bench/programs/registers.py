"""A client of the service `registers` in Python: see ../src/registers.rs.

    registers.py SOCKET RANK FIRST_KEY IN_FLIGHT

It reads how many calls it is to make, makes them, and writes how many ns they took.
"""

import asyncio
import sys
import time

import copyrpc

KEYS, PUT_EVERY = 1024, 20
# Seconds: a daemon that is alive may wait long for a core.
PATIENCE = 120
GET, PUT = copyrpc.method_number("get"), copyrpc.method_number("put")
SERVICE = copyrpc.service_number("registers")


def value(word: int) -> bytes:
    return word.to_bytes(8, "little") * 8


class Plan:
    """Calls in order, and the values that they are answered with."""

    def __init__(self, first_key: int):
        self.first_key, self.versions, self.number = first_key, [0] * KEYS, 0

    def next_call(self):
        slot = self.number % KEYS
        key = self.first_key + slot
        method, body, answer = GET, key.to_bytes(4, "little"), value(key | self.versions[slot] << 32)
        if self.number % PUT_EVERY == 0:
            self.versions[slot] += 1
            method, body = PUT, body + value(key | self.versions[slot] << 32)
        self.number += 1
        return method, body, answer


def check(answer: bytes, expected: bytes) -> None:
    if answer != expected:
        sys.exit("wrong answer")


def one_by_one(client: copyrpc.Client, rank: int, plan: Plan) -> None:
    for line in sys.stdin:
        begin_ns = time.perf_counter_ns()
        for _ in range(int(line)):
            method, body, expected = plan.next_call()
            check(client.call(rank, SERVICE, method, body), expected)
        print(time.perf_counter_ns() - begin_ns, flush=True)


async def awaited(socket: str, rank: int, plan: Plan, in_flight: int) -> None:
    async with copyrpc.AsyncClient(socket, timeout=PATIENCE) as client:

        async def calls(count: int) -> None:
            for _ in range(count):
                method, body, expected = plan.next_call()
                check(await client.call(rank, SERVICE, method, body), expected)

        for line in sys.stdin:
            begin_ns = time.perf_counter_ns()
            each, rest = divmod(int(line), in_flight)
            await asyncio.gather(*(calls(each + (task < rest)) for task in range(in_flight)))
            print(time.perf_counter_ns() - begin_ns, flush=True)


def main() -> None:
    socket, numbers = sys.argv[1], [int(text) for text in sys.argv[2:]]
    rank, first_key, in_flight = numbers
    plan = Plan(first_key)
    if in_flight == 1:
        with copyrpc.Client(socket, timeout=PATIENCE) as client:
            one_by_one(client, rank, plan)
    else:
        asyncio.run(awaited(socket, rank, plan, in_flight))


main()
