"""The lab's HTTP client: requests one after another, each on a connection of its own; prints who answered.

    python -m uvs.lab.fetch [-n TIMES] URL

Exit status 0 if every request was answered.
"""

import argparse
import sys
import urllib.error
import urllib.request

TIMEOUT = 20.0  # seconds a request may take


def fetch(url: str) -> str:
    """The body of an answer, stripped. OSError if there is none."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=TIMEOUT) as answer:
        body: bytes = answer.read()
    return body.decode().strip()


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m uvs.lab.fetch", description="Send HTTP requests, print the answers."
    )
    parser.add_argument("-n", type=int, default=1, metavar="TIMES", help="how many requests (default 1)")
    parser.add_argument("url")
    args = parser.parse_args()
    failed = 0
    for _ in range(args.n):
        try:
            print(fetch(args.url), flush=True)
        except OSError as e:
            print(f"no answer: {getattr(e, 'reason', e)}", flush=True)
            failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
