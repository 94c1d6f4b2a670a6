"""What a program can see of TCP sockets, one line for each check.

The test runs it plain and under `narrows run --loopback` and compares the lines. The client has the address 127.0.0.2 and
the server 127.0.0.1, so that scope rules can leave either side plain. Nothing printed depends on ports, times or sizes of
buffers.
"""

import signal
import sys

# Leaves the source folder unchanged.
sys.dont_write_bytecode = True

import seen.data
import seen.options
import seen.descriptors
import seen.ends
import seen.connecting
import seen.processes
import seen.hands
from seen.tools import checks


def late(*_):
    raise TimeoutError


def main():
    chosen = sys.argv[1:]
    signal.signal(signal.SIGALRM, late)
    for function in checks:
        if chosen and function.__name__ not in chosen:
            continue
        signal.alarm(20)
        try:
            result = function()
        except BaseException as error:
            result = f"{type(error).__name__}: {error}"
        signal.alarm(0)
        print(f"{function.__name__}: {result}", flush=True)


main()
