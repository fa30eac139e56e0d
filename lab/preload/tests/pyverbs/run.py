"""Runs rdma-core's own tests, which Debian's package python3-pyverbs installs, and writes a line for each.

usage: run.py FOLDER SCRATCH [TEST ...]

FOLDER holds the tests, partly compressed. SCRATCH is a folder into which they are unpacked if it is empty. The lines are

    start TEST
    TEST pass
    TEST skip REASON
    TEST fail REASON
    end COUNT

A test without an end is the one that hung, or ended the process.
"""

import faulthandler
import gzip
import pathlib
import shutil
import sys
import unittest

# What a ConnectX has and the software NIC has not: a network interface with an address. rdma_cm takes any address of this
# machine.
ADDRESS = "127.0.0.1"


def unpack(source, folder):
    if folder.exists():
        return
    folder.mkdir()
    for path in source.iterdir():
        if path.suffix == ".gz":
            with gzip.open(path) as packed:
                (folder / path.stem).write_bytes(packed.read())
        elif path.suffix == ".py":
            shutil.copy(path, folder)


def one_line(text):
    return " ".join(str(text).split())


class Lines(unittest.TestResult):
    def tell(self, test, verdict, reason=""):
        print(one_line(f"{test.id()} {verdict} {reason}"), flush=True)

    def startTest(self, test):
        super().startTest(test)
        print(f"start {test.id()}", flush=True)

    def addSuccess(self, test):
        self.tell(test, "pass")

    def addSkip(self, test, reason):
        self.tell(test, "skip", reason)

    def addError(self, test, error):
        self.tell(test, "fail", f"{error[0].__name__}: {error[1]}")

    addFailure = addError

    def addSubTest(self, test, subtest, outcome):
        if outcome is not None:
            self.addError(test, outcome)


def with_address():
    base = sys.modules["tests.base"].RDMATestCase
    original = base.setUp

    def set_up(self):
        original(self)
        self.ip_addr = self.ip_addr or ADDRESS

    base.setUp = set_up


def main():
    source, scratch = map(pathlib.Path, sys.argv[1:3])
    names = sys.argv[3:]
    folder = scratch / "tests"
    unpack(source, folder)
    sys.argv[1:] = []
    sys.path[:0] = [str(scratch), str(folder)]
    faulthandler.enable()
    import args_parser

    args_parser.parser.parse_args()
    import tests

    loader = unittest.TestLoader()
    suite = loader.loadTestsFromNames(names) if names else loader.loadTestsFromModule(tests)
    with_address()
    result = Lines()
    suite.run(result)
    print(f"end {result.testsRun}", flush=True)


main()
