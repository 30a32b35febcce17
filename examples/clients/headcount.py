"""Asks headcount about a user. Whoever is turned away gets the same answer; if headcount does not answer, all come in."""
import http.client


def check(token, host="127.0.0.1", port=7070, timeout=0.05):
    """Returns None to let the user in, or (status, headers, body) to answer instead."""
    connection = http.client.HTTPConnection(host, port, timeout=timeout)
    try:
        connection.request("GET", "/v1/check", headers={"Authorization": b"Bearer " + token.encode()})
        answer = connection.getresponse()
        body = answer.read()
        return None if answer.status not in (400, 429, 431) else (answer.status, dict(answer.headers), body)
    except ValueError:
        return 400, {}, b"The token cannot be used.\n"
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
