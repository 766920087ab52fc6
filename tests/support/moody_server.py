"""A web server whose mood a file says, read at each request. Run as a program, without any import of uvs.

moody_server.py NAME FILE        well | busy (status 503) | slow (30 s until it answers) | cut | garbage
"""

import asyncio
import os
import socket
import sys
from pathlib import Path

ANSWERS = {
    "well": "HTTP/1.1 200 OK\r\nContent-Length: {0}\r\nConnection: close\r\n\r\n{1}\n",
    "busy": "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 5\r\nConnection: close\r\n\r\nbusy\n",
    "cut": "HTTP/1.1 200 OK\r\nContent-Length: 5000\r\nConnection: close\r\n\r\ncut",
    "garbage": "\0\1\2 no HTTP at all\r\n\r\n",
}


async def main(name: str, mood: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            now = mood.read_text().strip() if mood.exists() else "well"
            if now == "slow":
                await asyncio.sleep(30)
            writer.write(ANSWERS.get(now, ANSWERS["well"]).format(len(name) + 1, name).encode())
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    await asyncio.start_server(answer, "0.0.0.0", 80)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.sendto(b"READY=1", os.environ["NOTIFY_SOCKET"])
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
