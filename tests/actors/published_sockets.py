# Servers that publish their socket in one step: bound under one name, and renamed or linked since; whose directory was renamed; bound by a relative name.
import os, socket, threading


def serve(one, said):
    while True:
        client, _ = one.accept()
        client.sendall(said)
        client.close()


def listen(path, said):
    one = socket.socket(socket.AF_UNIX)
    one.bind(path)
    one.listen()
    threading.Thread(target=serve, args=(one, said.encode())).start()
    return one


os.mkdir("/tmp/s")
os.chdir("/tmp/s")
listen("/tmp/s/plain", "/tmp/s/plain")
os.chmod("/tmp/s/plain", 0o640)
listen("/tmp/s/new", "/tmp/s/renamed")
os.rename("/tmp/s/new", "/tmp/s/renamed")
os.chmod("/tmp/s/renamed", 0o604)
# The name has another socket by now.
listen("/tmp/s/new", "/tmp/s/new")
listen("/tmp/s/first", "/tmp/s/linked")
os.link("/tmp/s/first", "/tmp/s/linked")
os.unlink("/tmp/s/first")
os.mkdir("/tmp/s/early")
listen("/tmp/s/early/socket", "/tmp/s/late/socket")
os.rename("/tmp/s/early", "/tmp/s/late")
os.mkdir("/tmp/s/home")
os.chdir("/tmp/s/home")
listen("relative", "/tmp/s/home/relative")
listen("again", "/tmp/s/home/other")
os.rename("again", "other")
os.chdir("/")
gone = listen("/tmp/s/gone", "gone")
os.unlink("/tmp/s/gone")
with open("/tmp/s/gone", "w") as file:
    file.write("a file")
open("/tmp/up", "w").write("up")
threading.Event().wait()
