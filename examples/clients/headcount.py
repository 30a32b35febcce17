"""Asks headcount about a request. If headcount refuses it, the application answers the client as headcount did.

If headcount does not answer, the request is admitted. headcount uses the method, path and address of the request only
if its server.trusted_proxies lists this program's address. A refusal may wait for up to 1 s, so the timeout is longer.
"""
import http.client
import socket
import threading
import time

LONGEST_TOKEN = 4096

_kept = threading.local()

# If a check times out and no other was answered since it was sent, headcount hangs. Until it answers again, one request
# a second is checked; the others are admitted at once.
_lock = threading.Lock()
_hangs = False
_next_check = 0.0
_last_answer = float("-inf")


def check(token, method="GET", path="/", address=None, accept=None, language=None, ticket=None, upgrade=None,
          host="127.0.0.1", port=7070, timeout=1.5):
    """If the request opens a WebSocket or has the header Upgrade, pass all values of the header, or any text, as upgrade.

    Such a request is exempt nowhere. language is the value of Accept-Language, and ticket that of X-Headcount-Ticket: the
    place of the client in the line, which it got with its last refusal.

    Returns None if the request is admitted, or (status, headers, body), the answer for the client.
    """
    token = token.encode()
    if len(token) > LONGEST_TOKEN:
        return 431, {}, b"The token is too long.\n"
    headers = {"Authorization": b"Bearer " + token, "X-Original-Method": method, "X-Original-URI": path.encode()}
    headers |= {"X-Forwarded-For": address} if address else {}
    headers |= {"Accept": accept} if accept else {}
    headers |= {"Accept-Language": language} if language else {}
    headers |= {"X-Headcount-Ticket": ticket} if ticket else {}
    headers |= {"X-Original-Upgrade": upgrade} if upgrade else {}
    sent = time.monotonic()
    if not _may_ask(sent):
        return None
    # The kept connection may have been closed in the meantime. Then the check is sent again on a new connection.
    for connection in (_take_kept(host, port, timeout), http.client.HTTPConnection(host, port, timeout=timeout)):
        if connection is None:
            continue
        try:
            connection.request("GET", "/v1/check", headers=headers)
            answer = connection.getresponse()
            body = answer.read()
        except ValueError:
            connection.close()
            return 400, {}, b"The request cannot be used.\n"
        except socket.timeout:
            connection.close()
            _got_no_answer(sent)
            return None
        except (OSError, http.client.HTTPException):
            connection.close()
            continue
        _kept.connection = connection
        _got_an_answer()
        return None if answer.status not in (400, 429, 431) else (answer.status, dict(answer.headers), body)
    return None


def _may_ask(now):
    global _next_check
    with _lock:
        if not _hangs:
            return True
        if now < _next_check:
            return False
        _next_check = now + 1.0
        return True


def _got_an_answer():
    global _hangs, _last_answer
    with _lock:
        _hangs, _last_answer = False, time.monotonic()


def _got_no_answer(sent):
    global _hangs, _next_check
    with _lock:
        if not _hangs and _last_answer < sent:
            _hangs, _next_check = True, time.monotonic() + 1.0


def _take_kept(host, port, timeout):
    connection, _kept.connection = getattr(_kept, "connection", None), None
    if connection is None or connection.sock is None or (connection.host, connection.port) != (host, port):
        return None
    connection.sock.settimeout(timeout)
    return connection
