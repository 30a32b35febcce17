"""Asks headcount about the requests in its arguments, and prints the client's results. See tests/clients.rs."""
import json
import os
import sys
import threading
import time
import urllib.parse

from headcount import check

SECONDS = float(sys.argv[1])
PORT = urllib.parse.urlsplit(os.environ["HEADCOUNT_URL"]).port


def ask(described):
    token, options = json.loads(described)
    answer = check("x" * token if isinstance(token, int) else token, port=PORT, timeout=SECONDS, **options)
    if answer is None:
        return "in"
    return f"{answer[0]} {answer[1].get('retry-after', '').isdigit()} {answer[2][:1].decode()}"


def until_refused(described):
    while ask(described) == "in":
        time.sleep(0.01)


if sys.argv[2] == "callers":
    callers = [threading.Thread(target=until_refused, args=(sys.argv[4],)) for _ in range(int(sys.argv[3]))]
    for caller in callers:
        caller.start()
else:
    for described in sys.argv[2:]:
        print(ask(described))
