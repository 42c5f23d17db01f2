listener = socket.socket(socket.AF_UNIX)
listener.bind("\0listener")
listener.listen(5)
silent, eager = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
for one in (silent, eager):
    one.connect("\0listener")
eager.send(b"unheard")


def received(one):
    one.settimeout(5)
    try:
        return one.recv(100).decode()
    except OSError as error:
        return error.errno


def answers():
    listener.settimeout(0.5)
    said = []
    for _ in range(2):
        try:
            one, _ = listener.accept()
            one.send(b"heard")
            said.append(one.recv(100, socket.MSG_DONTWAIT).decode())
        except BlockingIOError:
            said.append("")
        except TimeoutError:
            pass
    return {"said": said, "silent": received(silent), "eager": received(eager)}


answer(answers)
